//! Rows out of bounds, written past the database's own checks: reads skip and count them.

use anyhow::{bail, ensure};
use tollgate::{
    Admin, Error, Key, Mode, Quota, Rule, Store, Take, Window,
    admin::{Filter, Override},
    store::{Maintenance, SharedWindows},
};

use crate::engines::Kind;
use crate::matrix::{Case, Setup, list};
use crate::pools::Scratch;
use crate::test_db::{AnyPool, TestDb};

/// The keys of all pages, and the number of rows that the pages skipped.
macro_rules! all {
    ($limit:expr, $after:ident => $page:expr, $row:pat => $key:expr) => {{
        let (mut keys, mut unreadable) = (Vec::<Key>::new(), 0);
        loop {
            let $after = keys.last();
            let page = $page.await?;
            unreadable += page.unreadable();
            keys.extend(page.iter().map(|$row| $key.clone()));
            if page.len() < $limit as usize {
                break (keys, unreadable);
            }
        }
    }};
}

pub fn cases() -> Vec<Case> {
    // Without layers: the cases use operators' lists, with rows that their SQL broke.
    let mut cases = list!(
        Setup::WITHOUT_LAYERS;
        lists_skip_and_count_rows_out_of_bounds,
        read_names_the_row_that_is_out_of_bounds,
        huge_counts_take_no_view_away,
        windows_and_denials_take_no_invalid_id,
    );
    cases.extend(list!(
        Setup { needs: |engine| !engine.has_routines, ..Setup::WITHOUT_LAYERS };
        request_for_damaged_row_names_the_row,
    ));
    cases
}

async fn lists_skip_and_count_rows_out_of_bounds(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let (store, mut keys) = (scratch.db.store(), [db.key(), db.key()]);
    keys.sort();
    for key in &keys {
        store.create_bucket(key, "5/h".parse()?).await?;
        store.create_plan(key, "5/h".parse()?).await?;
        store.set_override(key, Override { mode: Some(Mode::Shadow), ..Override::default() }).await?;
        store.count(key, &"5 in 1h at 1min".parse::<Window>()?, 1).await?;
        store.count_denials(&[(key.clone(), 3)]).await?;
    }
    let broken = break_rows(&scratch.db).await?;

    for limit in [1, 2, 100] {
        let buckets = all!(limit, after => store.list(&Filter::default(), after, limit), level => level.key());
        assert_eq!(buckets, (keys.to_vec(), broken.buckets), "buckets by {limit}");
        let windows = all!(limit, after => store.windows(None, after, limit), level => level.key());
        assert_eq!(windows, (keys.to_vec(), broken.windows), "windows by {limit}");
        let plans = all!(limit, after => store.plans(after, limit), plan => &plan.name);
        assert_eq!(plans, (keys.to_vec(), broken.plans), "plans by {limit}");
        let overrides = all!(limit, after => store.overrides(after, limit), (key, _) => key);
        assert_eq!(overrides, (keys.to_vec(), broken.overrides), "overrides by {limit}");
    }
    let denied = store.most_denied(100).await?;
    assert_eq!(denied.iter().map(|denials| &denials.key).collect::<Vec<_>>(), keys.each_ref());
    assert_eq!(denied.unreadable(), broken.denials);
    assert_eq!(store.most_denied(2).await?.len(), 2);
    // A sweep skips these rows.
    for _ in 0..100 {
        if store.sweep(1).await?.finished {
            return Ok(());
        }
    }
    bail!("no sweep ends")
}

async fn read_names_the_row_that_is_out_of_bounds(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let (store, sound) = (scratch.db.store(), scratch.db.bucket(Quota::per_hour(5).try_into()?).await?);
    break_rows(&scratch.db).await?;
    let key = Key::try_from("minus")?;
    for error in [
        store.peek(&key).await.expect_err("its capacity is -5"),
        store.peek_window(&key).await.expect_err("its maximum is -5"),
        store.plan(&key).await.expect_err("its capacity is -5"),
    ] {
        assert!(matches!(&error, Error::Unreadable { key: named, .. } if *named == key), "{error:?}");
        assert_eq!(error.to_string(), "the row of 'minus' breaks its bounds");
    }
    let error = store.mode().await.expect_err("it is no mode");
    assert_eq!(error.to_string(), "the row of 'token_mode' breaks its bounds");
    let error = store.explain(&sound, None).await.expect_err("the mode of all is none");
    assert!(matches!(&error, Error::Unreadable { key: named, .. } if *named == sound), "{error:?}");
    assert_eq!(store.peek(&sound).await?.map(|level| level.available()), Some(5));
    Ok(())
}

/// Denials of two hours and counts of two sub-intervals have sums that no integer of 64 bits can hold.
async fn huge_counts_take_no_view_away(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let (db, store) = (&scratch.db, scratch.db.store());
    let [huge, sound] = ["huge", "sound"].map(|key| Key::try_from(key).expect("short enough"));
    let (schema, hours) = match db.engine.kind {
        Kind::Postgres => ("tollgate.", ["date_trunc('hour', now(), 'UTC')", "now() - interval '1 hour'"]),
        Kind::MySql => ("", ["date_format(utc_timestamp(), '%Y-%m-%d %H:00:00')", "utc_timestamp() - interval 1 hour"]),
        Kind::Sqlite => {
            ("", ["strftime('%Y-%m-%d %H:00:00.000', 'now')", "strftime('%Y-%m-%d %H:%M:%f', 'now', '-1 hours')"])
        }
    };
    for hour in hours {
        let row = format!("({hour}, 'huge', {}, {hour})", i64::MAX);
        db.pool.run(format!("insert into {schema}token_stats (hour, id, denied, last_denied_at) values {row}")).await?;
    }
    store.count_denials(&[(huge.clone(), 5), (sound.clone(), 3)]).await?;
    let denied = store.most_denied(10).await?;
    assert_eq!(denied.iter().map(|denials| &denials.key).collect::<Vec<_>>(), [&huge, &sound]);
    let denied = db.sql(format!("select denied from {schema}token_most_denied order by denied")).await?;
    assert_eq!(denied.len(), 2);
    ensure!(denied[0].number("denied")? == 3 && denied[1].number("denied")? >= 100_000_000_000_000_000, "{denied:?}");

    for key in [&huge, &sound] {
        store.count(key, &"5 in 1h at 1min".parse::<Window>()?, 1).await?;
    }
    damage_window(db, &huge).await?;
    let listed = match db.engine.kind {
        Kind::MySql => "call token_list_windows(null, null, 10)".to_owned(),
        _ => format!("select id, counted from {schema}token_window_levels order by id"),
    };
    let listed = db.sql(listed).await?;
    assert_eq!(listed.len(), 2);
    assert_eq!(listed[1].text("counted")?, Some("1"));
    Ok(())
}

/// The routines of a server deny the request.
async fn request_for_damaged_row_names_the_row(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let (db, store, key) = (&scratch.db, scratch.db.store(), db.key());
    let window = "5 in 1h at 1min".parse::<Window>()?;
    let take = Take::from(key.clone()).rule(Rule::Window(window));
    ensure!(db.decide(take.clone()).await?.is_granted());
    damage_window(db, &key).await?;
    let mut errors = vec![store.take(&[take]).await.expect_err("its counts are out of bounds")];
    errors.push(store.count(&key, &window, 1).await.expect_err("its counts are out of bounds"));

    store.create_bucket(&key, "5/h".parse()?).await?;
    let (off, on) = ("pragma ignore_check_constraints = on", "pragma ignore_check_constraints = off");
    db.pool.run(format!("{off}; update token_buckets set refill = 'never'; {on}")).await?;
    let take = Take::from(key.clone());
    let (two, other) = (
        take.clone().and(db.bucket("5/h".parse()?).await?, Rule::Provisioned),
        Take::from(db.key()).rule("5/h".try_into()?),
    );
    for takes in [vec![take.clone()], vec![take, other], vec![two]] {
        errors.push(store.take(&takes).await.expect_err("its refill is unknown"));
    }
    for error in errors {
        ensure!(matches!(&error, Error::Unreadable { key: named, .. } if *named == key), "{error:?}");
    }
    Ok(())
}

/// Writes counts that no request can have made.
async fn damage_window(db: &TestDb, key: &Key) -> anyhow::Result<()> {
    let (id, most, end) = (db.literal(key), i64::MAX, db.now().await?);
    let (table, counts) = match db.engine.kind {
        Kind::Postgres => {
            ("tollgate.token_windows", format!("ends = array[{end}, {end} + 1], counts = array[{most}, {most}]"))
        }
        Kind::MySql => ("token_windows", format!("counts = '[[{end}, {most}], [{end}, {most}]]'")),
        Kind::Sqlite => ("token_windows", format!("counts = '{end} {most}, {end} {most}'")),
    };
    Ok(db.pool.run(format!("update {table} set {counts} where id = {id}")).await?)
}

async fn windows_and_denials_take_no_invalid_id(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let (schema, ids) = match db.engine.kind {
        Kind::Postgres => ("tollgate.", &["''", r"e'\x01x'", "repeat('x', 256)"][..]),
        Kind::MySql => ("", &["''", "x'0178'", "x'6100'", "x'ff'", "repeat('x', 256)"][..]),
        Kind::Sqlite => ("", &["''", "char(1, 120)", "cast(x'6100' as text)", "printf('%.*c', 256, 'x')"][..]),
    };
    for id in ids {
        for insert in [window(&db, id, "5", 1), stats(&db, id, 1)] {
            let insert = format!("insert into {schema}{insert}");
            scratch.db.pool.run(&*insert).await.expect_err(&insert);
        }
    }
    for insert in [window(&db, "'x'", "5", 1), stats(&db, "'x'", 1)] {
        scratch.db.pool.run(format!("insert into {schema}{insert}")).await?;
    }
    Ok(())
}

/// The number of rows out of bounds in each table.
struct Broken {
    buckets: u64,
    windows: u64,
    plans: u64,
    overrides: u64,
    denials: u64,
}

/// Writes rows past the checks of their tables.
async fn break_rows(db: &TestDb) -> anyhow::Result<Broken> {
    let ids = match db.engine.kind {
        Kind::Postgres => &[r"e'\x01x'", "repeat('x', 256)"][..],
        Kind::MySql => &["x'0178'", "x'6100'", "x'ff'"][..],
        Kind::Sqlite => &["char(1, 120)", "cast(x'6100' as text)", "cast(x'ff' as text)"][..],
    };
    let of_bucket = |id: &str, capacity: &str, full_at: &str| match db.engine.kind {
        // The columns that a trigger would set.
        Kind::Postgres => format!(
            "token_buckets (id, capacity, refill_seconds, full_at, burst, step_ns, step_ticks, token_ticks)
             values ({id}, {capacity}, 1, {full_at}, {capacity}, 1000000000, {capacity}, 0 + {capacity})"
        ),
        _ => format!("token_buckets (id, capacity, refill_seconds, full_at) values ({id}, {capacity}, 1, {full_at})"),
    };
    let of_plan = |name: &str, capacity: i64| {
        format!("token_plans (name, capacity, refill_seconds) values ({name}, {capacity}, 1)")
    };
    let of_override = |id: &str, capacity: i64| {
        format!("token_overrides (id, capacity, refill_seconds, reason) values ({id}, {capacity}, 1, '')")
    };
    let mut buckets: Vec<_> = ids.iter().map(|id| of_bucket(id, "1", "0")).collect();
    buckets.extend([of_bucket("'zero'", "0", "0"), of_bucket("'minus'", "-5", "0")]);
    buckets.push(of_bucket("'far'", "1", "9223372036854775807"));
    let mut windows: Vec<_> = ids.iter().map(|id| window(db, id, "5", 1)).collect();
    windows.extend([window(db, "'minus'", "-5", 1), window(db, "'none'", "5", -1)]);
    if db.engine.kind == Kind::MySql {
        windows.push(window(db, "'no JSON'", "5", 1).replace("'[]'", "'no JSON'"));
    }
    let mut plans: Vec<_> = ids.iter().map(|id| of_plan(id, 1)).collect();
    plans.extend([of_plan("'zero'", 0), of_plan("'minus'", -5)]);
    let mut overrides: Vec<_> = ids.iter().map(|id| of_override(id, 1)).collect();
    overrides.extend([of_override("'zero'", 0), of_override("'minus'", -5)]);
    let mut denials: Vec<_> = ids.iter().map(|id| stats(db, id, 1)).collect();
    denials.push(stats(db, "'minus'", -3));
    let schema = if db.engine.kind == Kind::Postgres { "tollgate." } else { "" };
    let rows = [&buckets, &windows, &plans, &overrides, &denials].into_iter().flatten();
    let inserts: Vec<String> = rows.map(|row| format!("insert into {schema}{row};\n")).collect();
    let inserts = inserts.concat() + &format!("update {schema}token_mode set mode = 'none';\n");

    match &db.pool {
        AnyPool::Sqlite(_) => {
            let (off, on) = ("pragma ignore_check_constraints = on", "pragma ignore_check_constraints = off");
            db.pool.run(format!("{off};\n{inserts}{on}")).await?;
        }
        AnyPool::Postgres(pool) => {
            let unchecked: Vec<String> = sqlx::query_scalar(
                "select format('alter table %s drop constraint %I', c.conrelid::regclass, c.conname)
                   from pg_constraint c where c.connamespace = 'tollgate'::regnamespace and c.contype = 'c'
                  union all
                 select format('alter table %s disable trigger user', c.oid::regclass)
                   from pg_class c where c.relnamespace = 'tollgate'::regnamespace and c.relkind = 'r'",
            )
            .fetch_all(pool)
            .await?;
            db.pool.run(unchecked.join(";\n") + ";\n" + &inserts).await?;
        }
        AnyPool::MySql(_) if db.engine.checks_can_be_disabled => {
            let (off, on) = ("set check_constraint_checks = 0", "set check_constraint_checks = 1");
            db.pool.run(format!("{off};\n{inserts}{on}")).await?;
        }
        AnyPool::MySql(pool) => {
            let unchecked: Vec<String> = sqlx::query_scalar(
                "select cast(concat('alter table ', table_name, ' drop check ', constraint_name, ';\n') as char)
                   from information_schema.table_constraints
                  where constraint_schema = database() and constraint_type = 'CHECK'",
            )
            .fetch_all(pool)
            .await?;
            db.pool.run(unchecked.concat() + &inserts).await?;
        }
    }
    let many = |rows: &Vec<String>| u64::try_from(rows.len()).expect("few");
    Ok(Broken {
        buckets: many(&buckets),
        windows: many(&windows),
        plans: many(&plans),
        overrides: many(&overrides),
        denials: many(&denials),
    })
}

fn window(db: &TestDb, id: &str, most: &str, granted: i64) -> String {
    let (columns, values) = match db.engine.kind {
        Kind::Postgres => ("", ""),
        Kind::MySql => (", counts", ", '[]'"),
        Kind::Sqlite => (", counts, empty_at", ", '', 0"),
    };
    format!(
        "token_windows (id, max_requests, interval_ns, resolution_ns, granted{columns})
         values ({id}, {most}, 1000000000, 1000000000, {granted}{values})"
    )
}

fn stats(db: &TestDb, id: &str, denied: i64) -> String {
    let now = match db.engine.kind {
        Kind::Postgres => "now()",
        Kind::MySql => "utc_timestamp()",
        Kind::Sqlite => "strftime('%Y-%m-%d %H:%M:%f', 'now')",
    };
    format!("token_stats (hour, id, denied, last_denied_at) values ({now}, {id}, {denied}, {now})")
}
