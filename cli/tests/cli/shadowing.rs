//! PostgreSQL resolves an unqualified name by the search path and by how well its types match. A role that may create
//! objects in `public` can offer better matches there, which then run with the rights of the role that calls them.

use std::time::Duration;

use sqlx::PgPool;
use tollgate::uuid::Uuid;
use tollgate::{
    Adjusted, Admin, Key, Mode, PgStore, Quota, Receipt, Rule, Store, Take, Throttle, Window,
    admin::{Filter, Override},
    store::Maintenance,
};

use crate::command::{Ran, tollgate};
use crate::databases::{Database, Engine};

#[test]
fn objects_in_public_are_never_called() {
    let database = Database::empty(Engine::Postgres);
    database.sql(BETTER_MATCHES);
    database.run(&["migrate"]).ended(0);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let pool = PgPool::connect(&database.url).await.expect("it connects");
        assert_traps(&pool).await;
        decides(&PgStore::from(pool.clone())).await.expect("decisions");
        administers(&PgStore::from(pool.clone())).await.expect("what operators do");
        assert_eq!(objects_bound_to_public(&pool).await, Vec::<String>::new());
    });
    let limits =
        "plans.pro.quota = '10/s'\nbuckets.api.quota = '9/h'\noverrides.api = { mode = 'block', reason = 'a try' }\n";
    std::fs::write(database.directory.join("limits.toml"), limits).expect("a file");
    for arguments in COMMANDS {
        database.run(arguments).ended(0);
    }
}

/// The path may list `public` first, where even exact matches are the owner's of the database.
#[test]
fn objects_of_a_first_public_are_never_called() {
    for place in ["database", "role"] {
        let database = Database::empty(Engine::Postgres);
        database.sql(BETTER_MATCHES);
        let types = ["text", "uuid", "name", "interval", "timestamptz"]
            .map(|name| format!("create domain public.{name} as pg_catalog.{name} check (value is null);"));
        database.sql(&types.concat());
        let role = format!("tg_path_{}", &Uuid::new_v4().simple().to_string()[..20]);
        database.sql(&format!("create role {role} login superuser"));
        let owner = if place == "role" { &*role } else { database.name() };
        database.sql(&format!("alter {place} {owner} set search_path = public, pg_catalog"));
        let url = database.url_of(&role);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let run = |arguments: &[&str]| {
            let ran = tollgate(Some(&url), &database.directory).args(arguments).output();
            Ran::new(ran.expect("it starts"))
        };
        let limits = "plans.pro.quota = '10/s'\nbuckets.api.quota = '9/h'\n";
        std::fs::write(database.directory.join("limits.toml"), limits).expect("a file");
        let mut ran = vec![run(&["migrate"]), run(&["migrate"])];
        let library = runtime.block_on(async {
            let pool = PgPool::connect(&url).await.expect("it connects");
            let exact = "select 'a'::pg_catalog.name = 'a'::pg_catalog.name";
            let error = sqlx::query(exact).fetch_all(&pool).await.expect_err(exact).to_string();
            assert!(error.contains("entered"), "{error}");
            let store = PgStore::from(pool.clone());
            let library = match decides(&store).await {
                Ok(()) => administers(&store).await,
                error => error,
            };
            let again = tollgate::migrate(&pool).await.map(drop);
            pool.close().await;
            library.and(again)
        });
        ran.extend(COMMANDS.iter().copied().map(run));
        database.sql(&format!("reassign owned by {role} to postgres; drop owned by {role}; drop role {role}"));
        for ran in ran {
            assert!(!format!("{ran:?}").contains("entered"), "{place}: {ran:?}");
            assert_eq!(ran.code, 0, "{place}: {ran:?}");
        }
        library.expect("a set path");
    }
}

#[test]
fn printed_sql_calls_no_object_of_public() {
    let database = Database::empty(Engine::Postgres);
    database.sql(BETTER_MATCHES);
    for format in ["psql", "grants", "owner"] {
        let script = database.run(&["migrate", "--print", format, "--engine", "postgres"]).ended(0).out;
        database.sql(&script);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let pool = PgPool::connect(&database.url).await.expect("it connects");
        assert_eq!(objects_bound_to_public(&pool).await, Vec::<String>::new());
    });
}

/// Asserts that an unqualified name calls a planted object.
async fn assert_traps(pool: &PgPool) {
    for sql in
        ["select 1.5 * 2", "select quote_ident(current_user)", "select array_agg(n) from (values (1::bigint)) v (n)"]
    {
        let error = sqlx::query(sql).fetch_all(pool).await.expect_err(sql).to_string();
        assert!(error.contains("entered"), "{sql}: {error}");
    }
}

async fn decides(store: &PgStore) -> Result<(), tollgate::Error> {
    let key = |name: &str| Key::try_from(name).expect("a key");
    let rule = || Rule::try_from("100/h").expect("a quota");
    let take = |name: &str| Take::from(key(name)).rule(rule());
    let second = Duration::from_secs(1);
    let window: Rule = Window::new(5, 60 * second, second).expect("a window").into();
    let many = (0..40).map(|n| take(&format!("many {n}"))).chain([
        take("wait").cost(7).max_wait(second),
        take("id").id(Uuid::new_v4(), 60 * second),
        take("several").and(key("other"), rule()),
        take("several").and(key("other"), rule()),
        Take::from(key("window")).rule(window.clone()),
        Take::from(key("window")).rule(window).id(Uuid::new_v4(), 60 * second),
    ]);
    let takes: Vec<Take> = many.chain((0..9).map(|_| take("equal"))).collect();
    for takes in [&takes[..], &takes[..1], &takes[..9], &takes[41..42], &takes[42..43], &takes[44..45]] {
        for outcome in store.take(takes).await? {
            assert!(outcome.expect("a decision").is_granted());
        }
    }
    let with_id = take("id").cost(3).id(Uuid::new_v4(), 60 * second);
    let receipt = store.take(std::slice::from_ref(&with_id)).await?.remove(0).expect("a decision");
    assert!(receipt.is_granted());
    let receipt = Receipt::new(with_id.get_id().expect("an id"), key("id"), 3);
    let settled = store.adjust(&[receipt.clone().settle(1), receipt.refund(0)]).await?;
    assert!(matches!(settled[0], Ok(Adjusted::Done(_))), "{settled:?}");
    assert!(store.throttle(&key("other"), &rule(), Throttle::remaining(3)).await?);
    store.count_denials(&[(key("other"), 3)]).await
}

async fn administers(store: &PgStore) -> Result<(), tollgate::Error> {
    let [bucket, plan] = ["bucket", "free"].map(|name| Key::try_from(name).expect("a key"));
    let quota = || Quota::interval(2, Duration::from_secs(3600)).expect("a quota");
    let soon = || Some(chrono::Utc::now() + Duration::from_secs(3600));
    store.create_bucket(&bucket, quota()).await?;
    store.create_plan(&plan, quota().into()).await?;
    store.set_plan_mode(&plan, Some(Mode::Shadow), Some("a try"), soon()).await?;
    store
        .set_override(
            &bucket,
            Override { quota: Some(quota()), mode: None, reason: "a try".to_owned(), expires_at: soon() },
        )
        .await?;
    store.set_mode(Mode::Shadow, Some("a try"), soon()).await?;
    assert_eq!(store.mode().await?.mode, Mode::Shadow);
    assert!(store.peek(&bucket).await?.is_some());
    let window = Key::try_from("window").expect("a key");
    assert!(store.peek_window(&window).await?.is_some());
    assert!(!store.list(&Filter::default(), None, 9).await?.is_empty());
    assert!(!store.windows(None, None, 9).await?.is_empty());
    assert!(store.plan(&plan).await?.is_some());
    assert_eq!((store.plans(None, 9).await?.len(), store.overrides(None, 9).await?.len()), (1, 1));
    assert!(store.explain(&bucket, None).await?.known);
    assert_eq!(store.most_denied(9).await?.len(), 1);
    assert!(store.reset(&bucket).await? && store.clear_override(&bucket).await? && store.delete_plan(&plan).await?);
    assert!(store.delete(&bucket).await?);
    Ok(store.set_mode(Mode::Enforce, None, None).await?)
}

/// Objects of `tollgate` that were created with an object of `public`, and stay bound to it.
async fn objects_bound_to_public(pool: &PgPool) -> Vec<String> {
    let mut connection = pool.acquire().await.expect("a connection");
    sqlx::raw_sql("set search_path = pg_catalog").execute(&mut *connection).await.expect("a setting");
    sqlx::query_scalar(
        "select pg_describe_object(d.classid, d.objid, 0) || ' uses ' || pg_describe_object(d.refclassid, d.refobjid, 0)
           from pg_depend d
          where d.classid <> 'pg_operator'::regclass
            and (d.refobjid in (select oid from pg_operator where oprnamespace = 'public'::regnamespace)
                 or d.refobjid in (select oid from pg_proc where pronamespace = 'public'::regnamespace))",
    )
    .fetch_all(&mut *connection)
    .await
    .expect("an answer")
}

const COMMANDS: &[&[&str]] = &[
    &["create", "api", "--capacity", "2", "--per", "1h"],
    &["take", "api"],
    &["run", "api", "--", "true"],
    &["peek", "api"],
    &["list"],
    &["list", "--json"],
    &["plan", "set", "free", "--quota", "5/h"],
    &["plan", "list"],
    &["plan", "override", "api", "--quota", "9/h", "--reason", "a try"],
    &["plan", "list"],
    &["mode", "shadow", "--all", "--for", "1h", "--reason", "a try"],
    &["mode"],
    &["mode", "--clear", "--all"],
    &["explain", "api"],
    &["denied"],
    &["usage", "on"],
    &["usage", "record"],
    &["usage"],
    &["usage", "off"],
    &["watch", "--once"],
    &["reset", "api"],
    &["reset", "--prefix", "ap", "--force"],
    &["apply", "limits.toml", "--dry-run"],
    &["apply", "limits.toml"],
    &["delete", "api"],
    &["sweep"],
    &["migrate", "--dry-run"],
    &["doctor"],
];

/// Operators and functions with each name in tollgate's SQL, for types that `pg_catalog` would have to convert.
const BETTER_MATCHES: &str = include_str!("../../../tests/conformance/cases/attacks/shadowing.sql");
