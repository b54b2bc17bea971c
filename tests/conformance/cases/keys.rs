//! Ids are bytes: each valid text is a separate bucket, on every engine.

use std::time::Duration;

use anyhow::ensure;
use tollgate::{Key, Quota, Rule, Store, Take};

use crate::engines::Kind;
use crate::matrix::{Case, Setup, Time, list};
use crate::test_db::TestDb;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = list!(
        Setup { time: Time::Injected, ..Setup::DEFAULT };
        each_text_is_a_bucket_of_its_own,
        each_text_is_a_bucket_of_its_own_in_a_batch,
        each_text_is_a_bucket_of_its_own_on_first_use,
        each_text_inserted_by_sql_is_its_own_bucket,
        sql_cannot_insert_an_invalid_id,
    );
    cases.extend(list!(
        Setup { time: Time::Injected, needs: |engine| engine.has_routines, ..Setup::DEFAULT };
        each_text_quoted_by_sql_is_its_own_bucket,
        routines_refuse_an_invalid_id,
    ));
    cases.extend(list!(
        Setup { time: Time::Injected, needs: |engine| engine.kind == Kind::MySql, ..Setup::DEFAULT };
        a_lax_session_cuts_no_id_off,
    ));
    cases
}

async fn each_text_is_a_bucket_of_its_own(db: TestDb) -> anyhow::Result<()> {
    let keys = keys(&db)?;
    for key in &keys {
        db.create(key, once()?).await?;
    }
    each_has_one_token(&db, &keys).await
}

async fn each_text_is_a_bucket_of_its_own_in_a_batch(db: TestDb) -> anyhow::Result<()> {
    let keys = keys(&db)?;
    let takes: Vec<_> =
        keys.iter().map(|key| Take::from(key.clone()).rule(Rule::Quota(once().expect("one")))).collect();
    for expected in [true, false] {
        for (key, outcome) in keys.iter().zip(db.store().take(&takes).await?) {
            ensure!(outcome?.is_granted() == expected, "{key:?}");
        }
    }
    Ok(())
}

async fn each_text_is_a_bucket_of_its_own_on_first_use(db: TestDb) -> anyhow::Result<()> {
    for key in keys(&db)? {
        let take = Take::from(key.clone()).rule(Rule::Quota(once()?));
        ensure!(db.decide(take.clone()).await?.is_granted(), "{key:?}");
        ensure!(!db.decide(take).await?.is_granted(), "{key:?}");
    }
    Ok(())
}

async fn each_text_inserted_by_sql_is_its_own_bucket(db: TestDb) -> anyhow::Result<()> {
    let keys = keys(&db)?;
    for key in &keys {
        let (table, id) = (db.table(), db.quoted(key.as_str()));
        db.sql(format!("insert into {table} (id, capacity, refill_seconds) values ({id}, 1, 3600)")).await?;
    }
    // A column default can read the server's clock, which is not injected.
    db.at(4_000_000_000_000_000_000).await?;
    each_has_one_token(&db, &keys).await
}

async fn each_text_quoted_by_sql_is_its_own_bucket(db: TestDb) -> anyhow::Result<()> {
    for key in keys(&db)? {
        db.create(&key, once()?).await?;
        for expected in [1, 0] {
            let answer = db.call("request_token", &db.quoted(key.as_str())).await?;
            ensure!(answer.number("granted")? == expected, "{key:?}");
        }
    }
    Ok(())
}

async fn sql_cannot_insert_an_invalid_id(db: TestDb) -> anyhow::Result<()> {
    let nul = match db.engine.kind {
        Kind::Postgres => "convert_from(decode('610061', 'hex'), 'UTF8')".to_owned(),
        Kind::MySql => "x'610061'".to_owned(),
        Kind::Sqlite => "cast(x'610061' as text)".to_owned(),
    };
    let unique = db.key();
    let long = format!("{unique}{}", "x".repeat(220));
    let wide = format!("{unique}{}", "é".repeat(110));
    let known = db.bucket(once()?).await?;
    let of_a_windows_receipts = db.quoted(&format!("\u{1}{unique}"));
    for id in ["''".to_owned(), of_a_windows_receipts, "null".to_owned(), db.quoted(&long), db.quoted(&wide), nul] {
        let table = db.table();
        db.refusal(format!("insert into {table} (id, capacity, refill_seconds) values ({id}, 1, 3600)")).await?;
        db.refusal(format!("update {table} set id = {id}, capacity = 1 where id = {}", db.literal(&known))).await?;
    }
    Ok(())
}

async fn routines_refuse_an_invalid_id(db: TestDb) -> anyhow::Result<()> {
    let create = if db.engine.kind == Kind::Postgres { "create_bucket" } else { "token_create_bucket" };
    let unique = db.key();
    let (long, wide) = (format!("{unique}{}", "x".repeat(220)), format!("{unique}{}", "é".repeat(110)));
    for id in [String::new(), long, wide, format!("\u{1}{unique}")] {
        let id = db.quoted(&id);
        db.refusal(db.calling(create, &format!("{id}, 1, 3600, 'interval'"))).await?;
        db.refusal(db.calling("rate_limiting_request", &format!("{id}, 1, 10"))).await?;
        db.refusal(db.taking(&format!("{id}, 1, 0, 0, 1, 3600, 'interval', null, null, null"))).await?;
        db.refusal(db.calling("request_token", &id)).await?;
        db.refusal(db.calling("request_tokens_in_window", &format!("{id}, 5, 60, 5, 1, 0"))).await?;
    }
    Ok(())
}

/// Without strict mode, MySQL truncates a value that is too long for a column, with only a warning.
async fn a_lax_session_cuts_no_id_off(db: TestDb) -> anyhow::Result<()> {
    let unique = db.key();
    let whole = format!("{unique}{}", "x".repeat(255 - 36));
    db.create(&Key::try_from(&whole)?, once()?).await?;
    db.sql("set @sql_mode = @@sql_mode").await?;
    db.sql("set sql_mode = ''").await?;
    for longer in [format!("{whole}x"), format!("{whole}{whole}"), format!("{whole}é")] {
        let id = db.quoted(&longer);
        db.refusal(db.calling("request_token", &id)).await?;
        db.refusal(db.calling("rate_limiting_request", &format!("{id}, 1, 10"))).await?;
        db.refusal(db.calling("token_create_bucket", &format!("{id}, 5, 1, 'interval'"))).await?;
        let json = format!("json_array(json_array({id}, 1, 0, 0, null, null, null))");
        // Refused or unknown, but never the bucket whose id is a prefix.
        if let Ok(rows) =
            db.sql(format!("call token_take_batch_v1({json}, false, @answers); select @answers as answers")).await
        {
            let answers = rows.first().and_then(|row| row.text("answers").ok().flatten());
            ensure!(answers.is_some_and(|answers| answers.contains(" unknown ")), "{rows:?}");
        }
    }
    db.sql("set sql_mode = @sql_mode").await?;
    assert_eq!(db.row(&Key::try_from(&whole)?).await?.map(|row| row.granted), Some(0));
    Ok(())
}

async fn each_has_one_token(db: &TestDb, keys: &[Key]) -> anyhow::Result<()> {
    for expected in [true, false] {
        for key in keys {
            ensure!(db.take(key).await?.is_granted() == expected, "{key:?}");
        }
    }
    Ok(())
}

/// Texts that a collation, a trim, quoting or normalisation would merge or damage.
fn keys(db: &TestDb) -> anyhow::Result<Vec<Key>> {
    let unique = db.key().as_str()[..8].to_owned();
    let mut keys = vec![db.key()];
    for text in [
        "A",
        "a",
        "a ",
        " a",
        "a\t",
        "a\n",
        "á",
        "a\u{301}",
        "ä",
        "ａ",
        "ß",
        "ss",
        "SS",
        "ı",
        "i",
        "İ",
        "I",
        "a\u{200b}",
        "a\u{3}",
        "\u{2}",
        "\\",
        "\\\\",
        "\\0",
        "\\'",
        "'",
        "''",
        "\"",
        "`",
        "%",
        "_",
        "%s",
        "$1",
        "?",
        ":a",
        "{}",
        "--",
        "/*",
        "'; drop table token_buckets; --",
        "🚦",
        "🚥",
        "👩‍🚒",
        "👩",
        "null",
        "0",
        "00",
        "1e0",
    ] {
        keys.push(Key::try_from(format!("{unique}{text}"))?);
        keys.push(Key::try_from(format!("{text}{unique}"))?);
    }
    keys.push(Key::try_from(format!("{unique}{}", "x".repeat(255 - 8)))?);
    keys.push(Key::try_from(format!("{unique}{}", "x".repeat(254 - 8)))?);
    keys.push(Key::try_from(format!("{unique}{}x", "é".repeat(123)))?);
    keys.push(Key::try_from(format!("{unique}{}xxx", "🚦".repeat(61)))?);
    keys.sort();
    keys.dedup();
    Ok(keys)
}

fn once() -> Result<Quota, tollgate::model::QuotaError> {
    Quota::interval(1, Duration::from_hours(1))
}
