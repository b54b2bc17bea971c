//! An application's role can take tokens and nothing else; a role without grants can do nothing.

use std::time::Duration;

use sqlx::MySqlPool;
use sqlx::error::DatabaseError;
use sqlx::mysql::MySqlPoolOptions;
use sqlx::postgres::PgPoolOptions;
use tollgate::{
    Adjusted, Admin, Error, Limiter, Mode, Quota, Receipt, Rule, Store, TakeError, Throttle,
    admin::{Filter, Override},
    store::Maintenance,
};
use uuid::Uuid;

use crate::engines::Kind;
use crate::matrix::{Case, Setup, list};
use crate::pools::{Scratch, with_pool};
use crate::test_db::{AnyPool, TestDb, hex};

pub fn cases() -> Vec<Case> {
    // Without layers: the cases test the SQL that a role can execute.
    let mut cases = list!(
        Setup { needs: |engine| engine.has_roles, ..Setup::WITHOUT_LAYERS };
        an_applications_role_takes_tokens_and_can_do_nothing_else,
        a_role_without_grants_can_do_nothing,
        an_operators_role_provisions_changes_and_reads_buckets,
        owner_of_one_database_can_migrate_it,
    );
    cases.extend(list!(
        Setup { needs: |engine| engine.has_roles && engine.kind == Kind::MySql, ..Setup::WITHOUT_LAYERS };
        request_begun_by_one_account_is_not_finished_by_another,
        routines_write_no_row_out_of_bounds_where_checks_are_off,
    ));
    cases
}

async fn an_applications_role_takes_tokens_and_can_do_nothing_else(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let key = scratch.db.bucket(Quota::interval(2, Duration::from_secs(86_400))?).await?;
    let login = Login::new(&scratch.db, Some("tollgate_app")).await?;
    let app = &login.db;

    with_pool!(&app.pool, pool => assert_eq!(tollgate::migrate(pool).await?, []));
    assert!(app.take(&key).await?.is_granted());
    let unknown = app.take(&db.key()).await.expect_err("the bucket does not exist").downcast::<TakeError>()?;
    assert!(matches!(unknown, TakeError::UnknownBucket(_)), "{unknown:?}");
    let (id, table) = (app.literal(&key), app.table());
    match db.engine.kind {
        Kind::MySql => app.pool.run(format!("call request_token({id})")).await?,
        _ => app.pool.run(format!("select * from tollgate.request_token({id})")).await?,
    }
    assert!(!app.take(&key).await?.is_granted());

    let mut forbidden = vec![
        format!("update {table} set full_at = 0"),
        format!("insert into {table} (id, capacity, refill_seconds) values ('x', 1, 1)"),
        format!("delete from {table}"),
        format!("select granted from {table}"),
        format!("select swept_to from {}", table.replace("token_buckets", "token_sweep_position")),
    ];
    forbidden.extend(match db.engine.kind {
        Kind::MySql => vec![
            "call token_create_bucket('x', 1, 1, 'interval')".to_owned(),
            "call token_begin(true, @a)".to_owned(),
            format!("call token_prepare_bucket({id}, null, null, null, null, 0, 0, @a, @b, @c, @d, @e)"),
            "call token_window_count('x', 1, 1000000, 1000, 1, 0, 0, @a, @b, @c)".to_owned(),
            "delete from token_windows".to_owned(),
            "call token_sweep()".to_owned(),
        ],
        _ => vec![
            "select tollgate.create_bucket('x', 1, 1)".to_owned(),
            "select tollgate.clock()".to_owned(),
            "select tollgate.sweep()".to_owned(),
            "delete from tollgate.token_windows".to_owned(),
            "create table tollgate.mine (n int)".to_owned(),
        ],
    });
    for sql in forbidden {
        assert_not_permitted(app, &sql).await;
    }
    if let AnyPool::MySql(pool) = &scratch.db.pool {
        assert_no_granted_routine_takes_the_time(pool).await?;
    }
    for arguments in ["-5, 0, 0", "1, -1, 0", "1, 0, -5", "null, 0, 0", "0, 0, 0"] {
        let take = db.taking(&format!("{id}, {arguments}, null, null, null, null, null, null"));
        app.pool.run(&*take).await.expect_err(&take);
    }
    assert_eq!(scratch.db.row(&key).await?.expect("it is there").granted, 2);
    assert!(!app.take(&key).await?.is_granted(), "none of it made a token");
    let refund = || Receipt::new(Uuid::new_v4(), key.clone(), 1).refund(0);
    assert_eq!(app.store().adjust(&[refund(), refund()]).await?, [Ok(Adjusted::Done(0)), Ok(Adjusted::Done(0))]);
    // The role can report its own denials, but cannot read those of others.
    app.store().count_denials(&[(key.clone(), 3)]).await?;
    let denied = app.store().most_denied(1).await;
    assert!(matches!(denied, Err(Error::NotPermitted(_))), "{denied:?}");
    // An invalid id is refused, because operators could not read the denials with it.
    let ids: &[&str] = if db.engine.kind == Kind::MySql { &["ff", "00", "0178"] } else { &[r"\x01x"] };
    for id in ids {
        let count = match db.engine.kind {
            Kind::MySql => format!("call token_count_denials_v1('[[\"{id}\", 1]]')"),
            _ => format!("select tollgate.count_denials_v1(array[e'{id}'], array[1::bigint])"),
        };
        app.pool.run(count).await.expect_err("it is no key");
    }
    assert_eq!(scratch.db.store().most_denied(9).await?.len(), 1);
    // The role can read a bucket whose name it knows, but cannot list buckets.
    let limiter = Limiter::new(app.store(), Rule::Provisioned)?;
    assert_eq!(limiter.peek(key.clone()).await?.available(), 0);
    assert_eq!(Limiter::new(app.store(), "5/h")?.peek(db.key()).await?.available(), 5);
    assert_eq!(app.store().peek_window(&key).await?, None);
    assert_eq!(app.store().explain(&key, None).await?.mode, Mode::Enforce);
    let listed = app.store().list(&Filter::default(), None, 1).await;
    assert!(matches!(listed, Err(Error::NotPermitted(_))), "{listed:?}");
    let listed = app.store().windows(None, None, 1).await;
    assert!(matches!(listed, Err(Error::NotPermitted(_))), "{listed:?}");
    // The role can sweep, which shows it no key.
    let reset = app.store().reset(&key).await;
    assert!(matches!(reset, Err(Error::NotPermitted(_))), "{reset:?}");
    let step =
        if db.engine.kind == Kind::MySql { "call token_sweep_v1(1)" } else { "select * from tollgate.sweep_v1(1)" };
    let rows = app.sql(step).await?;
    assert_eq!(rows[0].columns().map(|(name, _)| name).collect::<Vec<_>>(), ["deleted", "finished"]);
    assert!(rows[0].numbers(["deleted", "finished"]).is_ok(), "figures tell no key");
    app.store().sweep(10).await?;
    // The role can pass on the limit that an upstream reports.
    assert!(app.store().throttle(&db.key(), &Rule::try_from("5/s")?, Throttle::remaining(1)).await?);
    match db.engine.kind {
        Kind::MySql => app.pool.run(format!("call token_throttle({id}, 0, null, null)")).await?,
        _ => app.pool.run(format!("select tollgate.throttle({id}, 0)")).await?,
    }
    login.remove().await
}

async fn a_role_without_grants_can_do_nothing(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let key = scratch.db.bucket(Quota::interval(2, Duration::from_secs(86_400))?).await?;
    let login = Login::new(&scratch.db, None).await?;
    let error = login.db.take(&key).await.expect_err("it has no grants").downcast::<Error>()?;
    assert!(matches!(error, Error::NotPermitted(_)), "{error:?}");
    assert!(error.to_string().contains("migrations/grants"), "{error}");
    let table = login.db.table();
    assert_not_permitted(&login.db, &format!("select * from {table}")).await;
    let migrated = with_pool!(&login.db.pool, pool => tollgate::migrate(pool).await);
    assert!(matches!(migrated, Err(Error::NotPermitted(_))), "{migrated:?}");
    login.remove().await
}

async fn an_operators_role_provisions_changes_and_reads_buckets(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let login = Login::new(&scratch.db, Some("tollgate_operator")).await?;
    let operator = &login.db;
    let key = operator.bucket(Quota::interval(2, Duration::from_secs(86_400))?).await?;
    operator.create(&key, Quota::interval(3, Duration::from_secs(86_400))?).await?;
    let table = operator.table();
    operator.pool.run(format!("insert into {table} (id, capacity, refill_seconds) values ('plain', 5, 60)")).await?;
    operator.pool.run("select * from ".to_owned() + &table.replace("token_buckets", "token_bucket_levels")).await?;
    operator.pool.run(format!("delete from {table} where id = 'plain'")).await?;
    assert_not_permitted(operator, &format!("update {table} set full_at = 0")).await;
    let (store, plan) = (operator.store(), db.key());
    store.create_plan(&plan, "10/h".parse()?).await?;
    assert!(store.set_plan_mode(&plan, Some(Mode::Shadow), Some("trial"), None).await?);
    store.set_mode(Mode::Shadow, Some("trial"), None).await?;
    assert_eq!(store.mode().await?.mode, Mode::Shadow);
    for mode in [Mode::Off, Mode::Block] {
        store.set_override(&key, Override { mode: Some(mode), ..Override::default() }).await?;
    }
    assert_eq!(store.explain(&key, Some(&plan)).await?.mode, Mode::Block);
    assert_eq!(store.overrides(None, 9).await?.len(), 1);
    assert!(store.clear_override(&key).await?);
    assert_eq!(store.list(&Filter::default(), None, 9).await?, [store.peek(&key).await?.expect("made")]);
    assert_eq!(store.peek_window(&key).await?, None);
    assert_eq!(store.windows(None, None, 1).await?, []);
    assert_eq!(store.plans(None, 9).await?, [store.plan(&plan).await?.expect("made")]);
    assert!(store.delete_plan(&plan).await? && store.reset(&key).await? && store.delete(&key).await?);
    assert_eq!(store.sweep(9).await?.deleted, 0);
    operator
        .pool
        .run(if db.engine.kind == Kind::MySql { "call token_sweep()" } else { "select tollgate.sweep()" })
        .await?;
    store.count_denials(&[(key, 3)]).await?;
    assert_eq!(store.most_denied(9).await?[0].denied, 3);
    for view in ["token_rules", "token_sizes", "token_most_denied"] {
        operator.pool.run(format!("select * from {}", table.replace("token_buckets", view))).await?;
    }
    operator.pool.run(format!("delete from {}", table.replace("token_buckets", "token_stats"))).await?;
    login.remove().await
}

async fn owner_of_one_database_can_migrate_it(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::new(&db).await?;
    let login = Login::owner(&scratch.db).await?;
    let owner = &login.db;
    with_pool!(&owner.pool, pool => assert!(!tollgate::migrate(pool).await?.is_empty()));
    let key = owner.bucket(Quota::interval(2, Duration::from_secs(86_400))?).await?;
    assert!(owner.take(&key).await?.is_granted());
    if db.engine.kind == Kind::Postgres {
        // A role that owns objects cannot be dropped.
        login.admin.run(format!("reassign owned by {} to current_user", login.name)).await?;
    }
    login.remove().await
}

/// The routines of two accounts could not call each other without a privilege.
async fn request_begun_by_one_account_is_not_finished_by_another(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::new(&db).await?;
    let login = Login::owner(&scratch.db).await?;
    let (owner, admin) = (&login.db, &scratch.db);
    let (AnyPool::MySql(ours), AnyPool::MySql(others)) = (&owner.pool, &admin.pool) else {
        anyhow::bail!("MySQL is needed")
    };
    let database: String = sqlx::query_scalar("select database()").fetch_one(others).await?;
    let view = format!("create view on {database}.*");
    admin.pool.run(format!("revoke {view} from {}@'%'", login.name)).await?;
    // A connection keeps its privileges on the database until it selects the database again.
    owner.pool.run(format!("use {database}")).await?;
    let stopped = tollgate::migrate(ours).await.expect_err("it may not make views");
    assert!(matches!(stopped, Error::NotPermitted(_)), "{stopped:?}");
    let begun = tollgate::store::pending_migrations(others).await?;

    let refused = tollgate::migrate(others).await.expect_err("the routines are the owner's").to_string();
    for word in [&*format!("{}@%", login.name), "root@", "tollgate migrate --repair"] {
        assert!(refused.contains(word), "{word}: {refused}");
    }
    assert_eq!(tollgate::store::pending_migrations(others).await?, begun);
    // As the error says: the account that began finishes the run, with the missing privilege.
    admin.pool.run(format!("grant {view} to {}@'%'", login.name)).await?;
    assert_eq!(tollgate::migrate(ours).await?, begun);
    assert_eq!(tollgate::migrate(others).await?, []);
    let key = owner.bucket(Quota::interval(2, Duration::from_secs(86_400))?).await?;
    assert!(owner.take(&key).await?.is_granted());

    // Or the other account creates all of them again.
    assert_eq!(tollgate::store::repair(others).await?, tollgate::store::migrations::<sqlx::MySql>());
    assert!(admin.take(&key).await?.is_granted());
    login.remove().await
}

/// A MariaDB session can disable the tables' checks.
async fn routines_write_no_row_out_of_bounds_where_checks_are_off(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let login = Login::new(&scratch.db, Some("tollgate_app")).await?;
    let known = db.key();
    let take = |id: &str, limits: &str| db.taking(&format!("{id}, 1, 0, 0, {limits}, null, null, null"));
    login.db.pool.run(take(&login.db.literal(&known), "5, 3600, 'interval'")).await?;
    if db.engine.checks_can_be_disabled {
        login.db.pool.run("set check_constraint_checks = 0").await?;
    }
    let (valid, limits) = (hex(b"new"), "5, 3600, 'interval'");
    let long = hex(&[b'x'; 256]);
    let ids = ["", "00", "6100", "0178", "ff", "61ff", &long].map(|id| (id, limits));
    let wrong = [
        "0, 3600, 'interval'",
        "-5, 3600, 'interval'",
        "4000000000000000000, 3155760000, 'once'",
        "1, 0, 'interval'",
        "1, -1, 'continuous'",
        "1, 3155760001, 'calendar'",
        "2000000000, 1, 'interval'",
        "900000000, 1, 'continuous'",
        "1, 1, 'never'",
    ];
    let known_id = hex(known.as_str().as_bytes());
    let of_limits = wrong.iter().flat_map(|limits| [(&*valid, *limits), (&*known_id, *limits)]);
    for (id, limits) in ids.into_iter().chain(of_limits) {
        let (json, text) = (limits.replace('\'', "\""), format!("x'{id}'"));
        let limit = format!("[\"{id}\", 1, 0, {json}]");
        let outs = "@b, @c, @d, @e, @f, @g, @h, @i, @j, @k, @l";
        let mut calls = vec![
            take(&text, limits),
            format!("set @a = 1; call token_take_v1({text}, 1, 0, 0, {limits}, null, null, 0, true, true, @a, {outs})"),
            format!("call token_take_batch_v1('[[\"{id}\", 1, 0, 0, {json}]]', true, @b)"),
            format!("call token_take_batch_v1('[[\"{id}\", 1, 0, 0, {json}], [\"{id}\", 1, 0, 0, {json}]]', true, @b)"),
            format!("call token_take_uniform_v1('[\"{id}\"]', 1, 0, {limits}, null, true)"),
            format!("call token_take_uniform_v1('[\"{id}\", \"{known_id}\"]', 1, 0, {limits}, null, true)"),
            format!("call token_take_uniform_v1('[\"{id}\"]', 1, 0, {limits}, x'0178', true)"),
            format!("call token_take_all_v1('[{limit}]', 0, null, 0, true, @b)"),
            format!("call token_take_all_batch_v1('[[{limit}]]', true, @b, @c)"),
            format!("call token_throttle_v1({text}, 0, 0, {limits}, null, true, @b)"),
        ];
        if limits == "5, 3600, 'interval'" {
            let window = "1, 0, 0, 5, 1000000000, 1000000000, null, 0, false, true, @b, @c, @d, @e, @f, @g";
            let uuid = Uuid::new_v4();
            calls.extend([
                format!("call token_take_window_v1({text}, {window})"),
                format!("call request_tokens_in_window({text}, 5, 60, 5, 1, 0)"),
                format!("call rate_limiting_request({text}, 1, 10)"),
                format!("call token_count_denials_v1('[[\"{id}\", 1]]')"),
                format!("call token_adjust_v1('refund', '{uuid}', {text}, 1, 0, 0, 1, true)"),
                format!("call token_adjust_window_v1('refund', '{uuid}', {text}, 1, 0, 1, true)"),
            ]);
        }
        for call in calls {
            // Refused, or answered without writing a row.
            let _ = login.db.pool.run(&*call).await;
            for (table, rows) in [("token_buckets", 1), ("token_windows", 0), ("token_stats", 0), ("token_receipts", 0)]
            {
                let found = scratch.db.sql(format!("select count(*) as n from {table}")).await?;
                assert_eq!(found[0].number("n")?, rows, "{table} after {call}");
            }
            let level = scratch.db.store().peek(&known).await?.expect("it is there");
            assert_eq!(level.quota(), Quota::interval(5, Duration::from_hours(1))?, "after {call}");
        }
    }
    login.remove().await
}

/// A helper decides as of this time: a caller that could pass it would fill buckets at will.
async fn assert_no_granted_routine_takes_the_time(pool: &MySqlPool) -> anyhow::Result<()> {
    let grants = include_str!("../../../migrations/grants/mysql.sql").lines();
    let granted: Vec<_> = grants.filter_map(|line| line.strip_prefix("grant execute on procedure ")).collect();
    assert!(granted.contains(&"token_take_v1 to tollgate_app;"), "{granted:?}");
    for routine in granted {
        let times: i64 = sqlx::query_scalar(
            "select count(*) from information_schema.parameters
              where specific_schema = database() and specific_name = ? and parameter_mode <> 'OUT'
                and parameter_name in ('p_at', 'p_now')",
        )
        .bind(routine.split(' ').next())
        .fetch_one(pool)
        .await?;
        assert_eq!(times, 0, "{routine}");
    }
    Ok(())
}

async fn assert_not_permitted(db: &TestDb, sql: &str) {
    let error = db.pool.run(sql).await.expect_err(sql);
    let code = error.as_database_error().and_then(DatabaseError::code).unwrap_or_default().into_owned();
    assert!(code == "42501" || code == "42000", "{sql}: {error}");
}

fn name() -> String {
    format!("t_{}", &Uuid::new_v4().simple().to_string()[..24])
}

/// A user of the server, with one role or none.
pub(super) struct Login {
    pub(super) db: TestDb,
    pub(super) name: String,
    admin: AnyPool,
}

impl Login {
    async fn new(db: &TestDb, role: Option<&str>) -> anyhow::Result<Self> {
        Self::with_sessions(db, role, 1).await
    }

    /// Uses a pool of up to `sessions` connections.
    pub(super) async fn with_sessions(db: &TestDb, role: Option<&str>, sessions: u32) -> anyhow::Result<Self> {
        let (name, admin) = (name(), &db.pool);
        match admin {
            AnyPool::Postgres(_) => {
                admin.run(include_str!("../../../migrations/grants/postgres.sql")).await?;
                admin.run(format!("create role {name} login")).await?;
                if let Some(role) = role {
                    admin.run(format!("grant {role} to {name}")).await?;
                }
            }
            AnyPool::MySql(_) => {
                admin.run(include_str!("../../../migrations/grants/mysql.sql")).await?;
                admin.run(format!("create user {name}@'%'")).await?;
                if let Some(role) = role {
                    admin.run(format!("grant {role} to {name}@'%'")).await?;
                    let to = db.engine.default_role_preposition;
                    admin.run(format!("set default role {role} {to} {name}@'%'")).await?;
                } else {
                    // Without any privilege on the database, the session could not select it.
                    admin.run("create table open_to_all (n int)").await?;
                    admin.run(format!("grant select on open_to_all to {name}@'%'")).await?;
                }
            }
            AnyPool::Sqlite(_) => anyhow::bail!("a file has no users"),
        }
        Self::named(db, name, sessions).await
    }

    /// A login with all privileges on this database, and none on the server.
    async fn owner(db: &TestDb) -> anyhow::Result<Self> {
        let name = name();
        match &db.pool {
            AnyPool::Postgres(pool) => {
                let database: String = sqlx::query_scalar("select current_database()").fetch_one(pool).await?;
                db.pool.run(format!("create role {name} login")).await?;
                db.pool.run(format!("alter database {database} owner to {name}")).await?;
            }
            AnyPool::MySql(pool) => {
                let database: String = sqlx::query_scalar("select database()").fetch_one(pool).await?;
                db.pool.run(format!("create user {name}@'%'")).await?;
                db.pool.run(format!("grant all on {database}.* to {name}@'%'")).await?;
            }
            AnyPool::Sqlite(_) => anyhow::bail!("a file has no users"),
        }
        Self::named(db, name, 1).await
    }

    async fn named(db: &TestDb, name: String, sessions: u32) -> anyhow::Result<Self> {
        let pool = match &db.pool {
            AnyPool::Postgres(pool) => {
                let options = pool.connect_options().as_ref().clone().username(&name);
                AnyPool::Postgres(
                    PgPoolOptions::new()
                        .idle_timeout(None)
                        .max_lifetime(None)
                        .max_connections(sessions)
                        .connect_with(options)
                        .await?,
                )
            }
            AnyPool::MySql(pool) => {
                let options = pool.connect_options().as_ref().clone().username(&name);
                AnyPool::MySql(
                    MySqlPoolOptions::new()
                        .idle_timeout(None)
                        .max_lifetime(None)
                        .max_connections(sessions)
                        .connect_with(options)
                        .await?,
                )
            }
            AnyPool::Sqlite(_) => anyhow::bail!("a file has no users"),
        };
        Ok(Self { db: db.on(pool), name, admin: db.pool.clone() })
    }

    pub(super) async fn remove(self) -> anyhow::Result<()> {
        with_pool!(&self.db.pool, pool => pool.close().await);
        let drop_user = match &self.admin {
            AnyPool::MySql(_) => format!("drop user {}@'%'", self.name),
            AnyPool::Postgres(_) | AnyPool::Sqlite(_) => format!("drop role {}", self.name),
        };
        Ok(self.admin.run(drop_user).await?)
    }
}
