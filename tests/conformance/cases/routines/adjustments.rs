//! The batch routine for adjustments, as any SQL client calls it.

use std::time::Duration;

use anyhow::ensure;
use tollgate::Quota;
use uuid::Uuid;

use super::START;
use crate::engines::Kind;
use crate::matrix::{Case, Setup, Time, list};
use crate::test_db::{TestDb, hex};

pub(crate) fn cases() -> Vec<Case> {
    list!(
        Setup { time: Time::Injected, needs: |engine| engine.has_routines, ..Setup::WITHOUT_LAYERS };
        adjustments_are_answered_in_their_places,
        batch_with_one_invalid_adjustment_is_refused,
    )
}

async fn adjustments_are_answered_in_their_places(db: TestDb) -> anyhow::Result<()> {
    db.at(START).await?;
    let [first, second] = {
        let quota = Quota::interval(9, Duration::from_hours(1))?;
        let (a, b) = (db.bucket(quota).await?, db.bucket(quota).await?);
        if a < b { [a, b] } else { [b, a] }
    };
    let (repeated, unknown_key) = (Uuid::new_v4().to_string(), db.key());
    let refund = |receipt: &str, key: &str, tokens: &str, window: &str| {
        ["refund", receipt, key, "5", "0", "0", tokens, window].map(str::to_owned)
    };
    let new = || Uuid::new_v4().to_string();
    let adjustments = [
        refund(&new(), second.as_str(), "3", "0"),
        refund(&repeated, first.as_str(), "2", "0"),
        refund(&new(), first.as_str(), "1", "1"),
        refund(&repeated, first.as_str(), "4", "0"),
        refund(&new(), unknown_key.as_str(), "4", "0"),
        refund(&new(), first.as_str(), "9", "0"),
    ];
    let mut found = called(&db, &adjustments).await?;
    // The answers are in any order.
    found.sort();
    let expected = ["1 done 3", "2 done 2", "3 unknown 0", "4 repeated 0", "5 unknown 0", "6 done 5"];
    ensure!(found == expected, "{found:?}");
    ensure!(called(&db, &[]).await?.is_empty());
    Ok(())
}

async fn batch_with_one_invalid_adjustment_is_refused(db: TestDb) -> anyhow::Result<()> {
    let key = db.bucket(Quota::interval(9, Duration::from_hours(1))?).await?;
    db.take(&key).await.map(|decision| assert!(decision.is_granted()))?;
    let before = db.row(&key).await?;
    let right = || ["refund", &Uuid::new_v4().to_string(), key.as_str(), "5", "0", "0", "1", "0"].map(str::to_owned);
    for (place, wrong) in [
        (0, "give"),
        (0, "null"),
        (1, "null"),
        (2, "null"),
        (3, "0"),
        (3, "null"),
        (4, "-1"),
        (4, "null"),
        (5, "null"),
        (6, "-1"),
        (6, "null"),
    ] {
        let mut adjustments = [right(), right(), right()];
        wrong.clone_into(&mut adjustments[1][place]);
        let refusal = db.refusal(call(&db, &adjustments)).await?;
        ensure!(refusal.sqlstate == "22023", "{wrong} at {place}: {refusal:?}");
        ensure!(db.row(&key).await? == before, "{wrong} at {place} moved something");
    }
    Ok(())
}

/// Kind, receipt, id, cost, granted, `scheduled_at`, tokens, and 1 for a window.
type Adjustment = [String; 8];

/// The texts with positions and outcomes.
async fn called(db: &TestDb, adjustments: &[Adjustment]) -> anyhow::Result<Vec<String>> {
    let rows = db.sql(call(db, adjustments)).await?;
    if db.engine.kind == Kind::MySql {
        let answers = db.sql("select @answers as answers").await?;
        let answers: Vec<String> = serde_json::from_str(answers[0].text("answers")?.unwrap_or_default())?;
        return Ok(answers);
    }
    let array = |column: &str| -> anyhow::Result<Vec<String>> {
        let text = rows[0].text(column)?.unwrap_or_default().trim_matches(['{', '}']).to_owned();
        Ok(text.split(',').filter(|argument| !argument.is_empty()).map(str::to_owned).collect())
    };
    let answers = array("outcomes")?.into_iter().zip(array("given_back")?).enumerate();
    Ok(answers.map(|(place, (outcome, given_back))| format!("{} {outcome} {given_back}", place + 1)).collect())
}

fn call(db: &TestDb, adjustments: &[Adjustment]) -> String {
    let text = |quote: &str, argument: &str| {
        if argument == "null" { argument.to_owned() } else { format!("{quote}{argument}{quote}") }
    };
    if db.engine.kind == Kind::MySql {
        let each = adjustments.iter().map(|[kind, receipt, id, numbers @ ..]| {
            let id = if id == "null" { id.clone() } else { hex(id.as_bytes()) };
            let texts = [kind, receipt, &id].map(|argument| text("\"", argument)).join(",");
            format!("[{texts},{}]", numbers.join(","))
        });
        return format!("call token_adjust_batch_v1('[{}]', false, @answers)", each.collect::<Vec<_>>().join(","));
    }
    let types = ["text", "uuid", "text", "bigint", "bigint", "bigint", "bigint", "boolean"];
    let columns = types.iter().enumerate().map(|(place, kind)| {
        let each = adjustments.iter().map(|adjustment| text("'", &adjustment[place])).collect::<Vec<_>>().join(",");
        format!("array[{each}]::{kind}[]")
    });
    db.calling("adjust_batch_v1", &columns.collect::<Vec<_>>().join(", "))
}
