//! Three places list the routines of a role: the calls of the crate, the grants, and the checks of `doctor`.

use std::collections::BTreeSet;
use std::path::Path;

use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::command::{Ran, SECRET, tollgate};
use crate::databases::{Database, Engine};

type Names = BTreeSet<String>;

#[test]
fn grants_cover_the_crate_and_doctor_checks_them() {
    for (dialect, before) in [("postgres", "tollgate."), ("mysql", "token_")] {
        let called = called(dialect, before);
        let grants = read(&format!("migrations/grants/{dialect}.sql"));
        let granted = |role: &str| granted(&grants, before, role);
        let (takers, operators) = (granted("tollgate_app"), granted("tollgate_operator"));
        assert!(called.len() > 10 && takers.len() > 10, "{dialect}: {called:?}, {takers:?}");
        let ungranted: Vec<_> =
            called.iter().filter(|name| !takers.contains(*name) && !operators.contains(*name)).collect();
        assert!(ungranted.is_empty(), "{dialect}: {ungranted:?} are called, and granted to no role");

        // A limiter takes tokens without the privilege for these.
        let beside = |name: &String| {
            ["sweep_v1", "count_denials_v1", "peek_window", "record_usage_v1"].contains(&bare(name, before))
        };
        let needed: Names = called.intersection(&takers).filter(|name| !beside(name)).cloned().collect();
        assert_eq!(
            looked_at(dialect, before, "takes"),
            needed,
            "{dialect}: doctor's list, and what is called and granted"
        );
        let spared: Names = called.intersection(&takers).filter(|name| beside(name)).cloned().collect();
        assert_eq!(looked_at(dialect, before, "beside"), spared, "{dialect}: what doctor warns of");
    }
}

#[test]
fn account_with_the_documented_role_may_take_tokens() {
    for engine in [Engine::MySql, Engine::MariaDb] {
        let database = Database::migrated(engine);
        database.sql(&database.run(&["migrate", "--print", "grants"]).ended(0).out);
        let account = format!("tg_role_{}", &uuid::Uuid::new_v4().simple().to_string()[..20]);
        let default = if engine == Engine::MySql { "to" } else { "for" };
        database.sql(&format!(
            "create user '{account}'@'%' identified by '{SECRET}'; grant tollgate_app to '{account}'@'%';
             set default role tollgate_app {default} '{account}'@'%'"
        ));
        let run = |argument: &str| {
            let ran = tollgate(Some(&database.url_of(&account)), &database.directory).arg(argument).output();
            Ran::new(ran.expect("it starts"))
        };
        let ran = [run("doctor"), run("migrate")];
        database.sql(&format!("drop user '{account}'@'%'"));
        let [doctor, migrate] = ran;
        doctor.ended(0).says(&["ok    grants", "may take tokens, and not operate", "ok    calls"]);
        migrate.ended(0).says(&["nothing is pending"]);
    }
}

#[test]
fn roles_with_a_prefix_open_one_database_only() {
    for engine in [Engine::Postgres, Engine::MySql, Engine::MariaDb] {
        let id = uuid::Uuid::new_v4().simple().to_string();
        let tenants = ["a", "b"].map(|tenant| Tenant::new(engine, &format!("{tenant}{}", &id[..12])));
        let ran = [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(of, at)| {
            let [app, operator] = ["app", "operator"].map(|role| format!("{}_{role}_login", tenants[of].prefix));
            let take = tenants[at].run_as(&app, &["take", "k", "--quota", "9/h"]);
            (of == at, take, tenants[at].run_as(&operator, &["plan", "set", "p", "--quota", "9/h"]))
        });
        tenants.into_iter().for_each(Tenant::remove);
        for (is_own, take, set) in ran {
            assert_eq!((take.code == 0, set.code == 0), (is_own, is_own), "{engine:?}: {take:?} {set:?}");
        }
    }
}

#[test]
fn prefix_grants_fail_while_public_can_connect() {
    let database = Database::empty(Engine::Postgres);
    let id = uuid::Uuid::new_v4().simple().to_string();
    let (prefix, administrator) = (format!("p{}", &id[..12]), format!("administrator_{}", &id[..12]));
    database.sql(&format!(
        "create role {administrator} login createrole; grant create on database {} to {administrator}",
        database.name()
    ));
    let url = database.url_of(&administrator);
    let migrated = tollgate(Some(&url), &database.directory).arg("migrate").output();
    let script = database.run(&["migrate", "--print", "grants", "--prefix", &prefix]).ended(0).out;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let ran = runtime.block_on(async {
        let mut connection = PgConnection::connect(&url).await?;
        let ran = sqlx::raw_sql(AssertSqlSafe(script)).execute(&mut connection).await.map(drop);
        connection.close().await.and(ran)
    });
    database.sql(&format!("drop owned by {administrator} cascade; drop role {administrator}"));
    Ran::new(migrated.expect("it starts")).ended(0);
    let error = ran.expect_err("the administrator does not own the database").to_string();
    assert!(error.contains(&format!("PUBLIC can still connect to database {}", database.name())), "{error}");
}

#[test]
fn prefix_reserved_by_postgres_is_refused() {
    let database = Database::empty(Engine::Sqlite);
    let print = |prefix| database.run(&["migrate", "--print", "grants", "--engine", "postgres", "--prefix", prefix]);
    for prefix in ["pg", "pg_shop"] {
        print(prefix).ended(2).says(&[&format!("that begin with pg_: --prefix {prefix}"), "reserves"]);
    }
    print("pgshop").ended(0).says(&["array '{pgshop_app,pgshop_operator}'"]);
}

/// A database on a shared server, with its own roles and a login for each.
struct Tenant {
    database: Database,
    prefix: String,
}

impl Tenant {
    fn new(engine: Engine, prefix: &str) -> Self {
        let database = Database::migrated(engine);
        database.sql(&database.run(&["migrate", "--print", "grants", "--prefix", prefix]).ended(0).out);
        for role in ["app", "operator"].map(|role| format!("{prefix}_{role}")) {
            database.sql(&match engine {
                Engine::Postgres => format!("create role {role}_login login; grant {role} to {role}_login"),
                _ => format!(
                    "create user '{role}_login'@'%' identified by '{SECRET}'; grant {role} to '{role}_login'@'%';
                     set default role {role} {} '{role}_login'@'%'",
                    if engine == Engine::MySql { "to" } else { "for" }
                ),
            });
        }
        Self { database, prefix: prefix.to_owned() }
    }

    fn run_as(&self, login: &str, arguments: &[&str]) -> Ran {
        let mut command = tollgate(Some(&self.database.url_of(login)), &self.database.directory);
        Ran::new(command.args(arguments).output().expect("it starts"))
    }

    fn remove(self) {
        let Self { database, prefix } = self;
        for role in ["app", "operator"].map(|role| format!("{prefix}_{role}")) {
            database.sql(&match database.engine {
                Engine::Postgres => format!("drop role {role}_login; drop owned by {role}; drop role {role}"),
                _ => format!("drop user '{role}_login'@'%'; drop role {role}"),
            });
        }
    }
}

/// The routines that the store calls, from its sources.
fn called(dialect: &str, before: &str) -> Names {
    let mut texts = read(&format!("src/store/sql/{dialect}.rs"));
    let directory = repository().join("src/store/sql").join(dialect);
    for entry in std::fs::read_dir(directory).expect("a directory") {
        texts += &std::fs::read_to_string(entry.expect("a file").path()).expect("text");
    }
    // Skips comments, which contain no calls.
    let code: Vec<&str> = texts.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    routines(&code.join("\n"), before)
}

/// The routines granted to a role, from the grant statements.
fn granted(grants: &str, before: &str, role: &str) -> Names {
    let uncommented: Vec<&str> = grants.lines().filter(|line| !line.trim_start().starts_with("--")).collect();
    let uncommented = uncommented.join("\n");
    let execute = uncommented.split(';').filter_map(|statement| {
        let (_, rest) = statement.split_once("grant execute on ")?;
        let (what, to) = rest.rsplit_once("to ")?;
        (to.trim() == role).then(|| what.to_owned())
    });
    execute.flat_map(|what| routines(&(what.trim_end().to_owned() + "("), before)).collect()
}

/// The routines that `doctor` checks for a role.
fn looked_at(dialect: &str, before: &str, what: &str) -> Names {
    let source = read(&format!("cli/src/doctor/{dialect}.rs"));
    let list = if dialect == "mysql" {
        let begin = if what == "takes" { "const REQUIRED_ROUTINES:" } else { "const OPTIONAL_ROUTINES:" };
        source.split_once(begin).and_then(|(_, rest)| rest.split_once("];"))
    } else {
        let (list, _) = source.split_once(&format!(") as {what}")).expect("an end");
        list.rsplit_once("p.proname in (").map(|(_, list)| (list, ""))
    };
    let (list, _) = list.expect("a list");
    let quoted = list.split(['"', '\'']).skip(1).step_by(2);
    quoted.map(|name| if name.starts_with(before) { name.to_owned() } else { format!("{before}{name}") }).collect()
}

/// All names with this prefix that are followed by arguments.
fn routines(text: &str, before: &str) -> Names {
    let mut names = Names::new();
    for (start, _) in text.match_indices(before) {
        let name = &text[start..];
        let end = before.len() + name[before.len()..].find(|letter: char| !is_of_name(letter)).unwrap_or(0);
        let is_whole = !text[..start].ends_with(is_of_name);
        if is_whole && end > before.len() && name[end..].starts_with('(') {
            names.insert(name[..end].to_owned());
        }
    }
    names
}

fn is_of_name(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || letter == '_'
}

fn bare<'n>(name: &'n str, before: &str) -> &'n str {
    name.strip_prefix(before).unwrap_or(name)
}

fn read(path: &str) -> String {
    std::fs::read_to_string(repository().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}
