//! What the routines refuse, with which code, and that nothing moves then.

use std::time::Duration;

use anyhow::ensure;
use tollgate::Quota;

use crate::engines::Kind;
use crate::matrix::{Case, Levels, Time, list};
use crate::rig::Rig;

pub(crate) fn cases() -> Vec<Case> {
    list!(
        Levels::Pools, Time::Injected, |engine| engine.has_routines;
        an_unknown_bucket_is_an_error_that_says_how_to_make_it,
        more_than_the_bucket_holds_is_an_error,
        arguments_out_of_range_move_no_token,
        the_versioned_routines_refuse_what_would_mint_tokens,
        rate_limiting_request_refuses_another_s_bucket_and_figures_that_are_none,
    )
    .into()
}

async fn an_unknown_bucket_is_an_error_that_says_how_to_make_it(rig: Rig) -> anyhow::Result<()> {
    let key = rig.key();
    for (routine, more) in [("request_token", ""), ("request_tokens", ", 1, 0, 0"), ("request_tokens", ", 1, 1000, 0")]
    {
        let arguments = format!("{}{more}", rig.quoted(key.as_str()));
        let refusal = rig.refusal(rig.calling(routine, &arguments)).await?;
        let sqlstate = if rig.engine.kind == Kind::Postgres { "P0002" } else { "45000" };
        ensure!(refusal.sqlstate == sqlstate && refusal.message.contains(key.as_str()), "{refusal:?}");
    }
    assert_eq!(rig.row(&key).await?, None, "asking for a bucket must not make it");
    Ok(())
}

async fn more_than_the_bucket_holds_is_an_error(rig: Rig) -> anyhow::Result<()> {
    let key = rig.bucket(Quota::interval(5, Duration::from_secs(1))?).await?;
    let before = rig.row(&key).await?;
    for more in ["6, 0, 0", "5, 0, 1", "1, 31622400000, 5", "9223372036854775807, 0, 9223372036854775807"] {
        let arguments = format!("{}, {more}", rig.quoted(key.as_str()));
        let refusal = rig.refusal(rig.calling("request_tokens", &arguments)).await?;
        ensure!(refusal.sqlstate == "22023" && refusal.message.contains("holds 5 tokens"), "{more}: {refusal:?}");
    }
    assert_eq!(rig.row(&key).await?, before);
    Ok(())
}

async fn arguments_out_of_range_move_no_token(rig: Rig) -> anyhow::Result<()> {
    let key = rig.bucket(Quota::interval(5, Duration::from_secs(1))?).await?;
    rig.take(&key).await.map(|decision| assert!(decision.is_granted()))?;
    let before = rig.row(&key).await?;
    let least = i64::MIN;
    let id = rig.quoted(key.as_str());
    for arguments in [
        format!("{id}, 0, 0, 0"),
        format!("{id}, -1, 0, 0"),
        format!("{id}, {least}, 0, 0"),
        format!("{id}, null, 0, 0"),
        format!("{id}, 1, -1, 0"),
        format!("{id}, 1, {least}, 0"),
        format!("{id}, 1, null, 0"),
        format!("{id}, 1, 0, -1"),
        format!("{id}, 1, 0, {least}"),
        format!("{id}, 1, 0, null"),
        "null, 1, 0, 0".into(),
    ] {
        let refusal = rig.refusal(rig.calling("request_tokens", &arguments)).await?;
        ensure!(refusal.sqlstate == "22023" && refusal.message.contains("tollgate"), "{arguments}: {refusal:?}");
    }
    let refusal = rig.refusal(rig.calling("request_token", "null")).await?;
    ensure!(refusal.sqlstate == "22023", "{refusal:?}");
    assert_eq!(rig.row(&key).await?, before);
    Ok(())
}

async fn the_versioned_routines_refuse_what_would_mint_tokens(rig: Rig) -> anyhow::Result<()> {
    let key = rig.bucket(Quota::interval(5, Duration::from_secs(1))?).await?;
    rig.take(&key).await.map(|decision| assert!(decision.is_granted()))?;
    let before = rig.row(&key).await?;
    let new = rig.key();
    let take = if rig.engine.kind == Kind::Postgres { "take_v1" } else { "token_take_v1" };
    let (least, most) = (i64::MIN, i64::MAX);
    for figures in [
        "null, 0, 0",
        "0, 0, 0",
        "-1, 0, 0",
        "1, null, 0",
        "1, -1, 0",
        "1, 31622400000000001, 0",
        "1, 0, null",
        "1, 0, -1",
    ]
    .map(str::to_owned)
    .into_iter()
    .chain([format!("{least}, 0, 0"), format!("1, {least}, 0"), format!("1, {most}, 0"), format!("1, 0, {least}")])
    {
        for (key, terms) in [(&key, "null, null, null"), (&key, "5, 1, 'interval'"), (&new, "5, 1, 'interval'")] {
            let arguments = format!("{}, {figures}, {terms}", rig.quoted(key.as_str()));
            let refusal = rig.refusal(rig.calling(take, &arguments)).await?;
            ensure!(refusal.sqlstate == "22023", "{arguments}: {refusal:?}");
        }
    }
    // No bucket, no id, and figures that make no bucket.
    for terms in ["0, 1, 'interval'", "-5, 1, 'interval'", "5, 0, 'interval'", "5, -1, 'interval'", "5, 1, 'never'"]
        .into_iter()
        .chain(["5, null, 'interval'", "5, 1, null"])
    {
        rig.refusal(rig.calling(take, &format!("{}, 1, 0, 0, {terms}", rig.quoted(new.as_str())))).await?;
        rig.refusal(rig.calling(take, &format!("null, 1, 0, 0, {terms}"))).await?;
    }
    let unknown = rig.call(take, "null, 1, 0, 0, null, null, null").await?;
    assert_eq!(unknown.text("outcome")?, Some("unknown"));
    assert_eq!(rig.row(&new).await?, None);
    assert_eq!(rig.row(&key).await?, before);
    Ok(())
}

async fn rate_limiting_request_refuses_another_s_bucket_and_figures_that_are_none(rig: Rig) -> anyhow::Result<()> {
    let key = rig.bucket(Quota::interval(10, Duration::from_secs(10))?).await?;
    let before = rig.row(&key).await?;
    let refusal =
        rig.refusal(rig.calling("rate_limiting_request", &format!("{}, 1, 10", rig.quoted(key.as_str())))).await?;
    ensure!(refusal.sqlstate == "22023" && refusal.message.contains("provisioned with other figures"), "{refusal:?}");
    assert_eq!(rig.row(&key).await?, before);

    let new = rig.key();
    let id = rig.quoted(new.as_str());
    for arguments in [
        format!("{id}, 0, 10"),
        format!("{id}, -1, 10"),
        format!("{id}, 1000000001, 10"),
        format!("{id}, 1, 0"),
        format!("{id}, 1, -1"),
        format!("{id}, 1, 3155760001"),
        "null, 1, 10".into(),
    ] {
        let refusal = rig.refusal(rig.calling("rate_limiting_request", &arguments)).await?;
        ensure!(refusal.sqlstate == "22023", "{arguments}: {refusal:?}");
    }
    assert_eq!(rig.row(&new).await?, None);
    Ok(())
}
