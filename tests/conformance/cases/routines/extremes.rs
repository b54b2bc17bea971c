//! Every argument of the routines with single values, at every extreme of its type. The result is an answer, or a documented
//! error before any change.

use std::time::Duration;

use anyhow::{Context, ensure};
use tollgate::Quota;

use crate::engines::Kind;
use crate::matrix::{Case, Setup, Time, list};
use crate::test_db::TestDb;

pub(crate) fn cases() -> Vec<Case> {
    list!(
        Setup { time: Time::Injected, needs: |engine| engine.has_routines, ..Setup::WITHOUT_LAYERS };
        no_argument_is_answered_by_an_error_of_the_engine,
        out_of_range_parameter_is_refused_before_the_routine,
    )
}

/// The purpose of a parameter, which determines its extreme values.
#[derive(Clone, Copy, PartialEq)]
enum Parameter {
    Id,
    Whole,
    /// A whole number of milliseconds; values above a year count as a year.
    Wait,
    Seconds,
    Word,
    Uuid,
}

use Parameter::{Id, Seconds, Uuid, Wait, Whole, Word};

/// Routines, as on PostgreSQL, with valid arguments. `ID` is a provisioned bucket, `NEW` a missing one, `UUID` an unused id.
const ROUTINES: &[(&str, &[(Parameter, &str)])] = &[
    ("request_token", &[(Id, "ID")]),
    ("request_tokens", &[(Id, "ID"), (Whole, "1"), (Wait, "0"), (Whole, "0")]),
    ("request_tokens_v1", &[(Id, "ID"), (Whole, "1"), (Wait, "0"), (Whole, "0"), (Id, "null"), (Uuid, "UUID")]),
    ("rate_limiting_request", &[(Id, "NEW"), (Whole, "1"), (Whole, "10")]),
    (
        "request_tokens_in_window",
        &[(Id, "NEW"), (Whole, "5"), (Seconds, "60"), (Seconds, "5"), (Whole, "1"), (Whole, "0")],
    ),
    (
        "take_v1",
        &[
            (Id, "NEW"),
            (Whole, "1"),
            (Whole, "0"),
            (Whole, "0"),
            (Whole, "5"),
            (Seconds, "1"),
            (Word, "interval"),
            (Id, "null"),
            (Uuid, "UUID"),
            (Whole, "0"),
        ],
    ),
    (
        "grant_v1",
        &[(Id, "NEW"), (Whole, "1"), (Whole, "0"), (Whole, "5"), (Seconds, "1"), (Word, "interval"), (Id, "null")],
    ),
    (
        "adjust_v1",
        &[(Word, "refund"), (Uuid, "UUID"), (Id, "ID"), (Whole, "1"), (Whole, "0"), (Whole, "0"), (Whole, "1")],
    ),
    ("adjust_window_v1", &[(Word, "refund"), (Uuid, "UUID"), (Id, "NEW"), (Whole, "1"), (Whole, "0"), (Whole, "1")]),
    (
        "throttle_v1",
        &[(Id, "NEW"), (Whole, "1"), (Whole, "0"), (Whole, "5"), (Seconds, "1"), (Word, "interval"), (Id, "null")],
    ),
    ("throttle", &[(Id, "ID"), (Whole, "5"), (Wait, "0"), (Wait, "0")]),
    ("create_bucket", &[(Id, "NEW"), (Whole, "5"), (Seconds, "1"), (Word, "interval")]),
    ("create_plan", &[(Id, "NEW"), (Whole, "5"), (Seconds, "1"), (Word, "interval")]),
    ("reset_bucket", &[(Id, "NEW")]),
    ("delete_bucket", &[(Id, "NEW")]),
    ("explain", &[(Id, "ID"), (Id, "null")]),
    ("peek_window", &[(Id, "ID")]),
];

async fn no_argument_is_answered_by_an_error_of_the_engine(db: TestDb) -> anyhow::Result<()> {
    let codes = ["22023", "23514", if db.engine.kind == Kind::Postgres { "P0002" } else { "45000" }];
    each_call(&db, extremes, &codes, false).await
}

async fn out_of_range_parameter_is_refused_before_the_routine(db: TestDb) -> anyhow::Result<()> {
    // No such routine or value; out of range, not a number, too long.
    let codes: &[&str] = if db.engine.kind == Kind::Postgres {
        // These routines take a double, and check it.
        &["42883", "22003", "22P02", "22023", "23514"]
    } else {
        &["22003", "HY000", "22007", "22001"]
    };
    each_call(&db, beyond, codes, true).await
}

/// Calls each routine with each of its arguments at each of these values. The call is refused with one of the codes before any
/// change, or answered if `must` is false.
async fn each_call(
    db: &TestDb,
    values: fn(&TestDb, Parameter) -> Vec<String>,
    codes: &[&str],
    must: bool,
) -> anyhow::Result<()> {
    db.at(START).await?;
    let key = db.bucket(Quota::interval(1_000_000, Duration::from_hours(1))?).await?;
    let mut wrong = Vec::new();
    for (routine, parameters) in ROUTINES {
        if *routine == "grant_v1" && db.engine.kind != Kind::Postgres {
            continue;
        }
        for place in 0..parameters.len() {
            for value in values(db, parameters[place].0) {
                let new = db.key();
                let arguments = parameters.iter().enumerate().map(|(at, (_, usual))| match *usual {
                    _ if at == place => value.clone(),
                    "ID" => db.quoted(key.as_str()),
                    "NEW" => db.quoted(new.as_str()),
                    "UUID" => db.quoted(&uuid::Uuid::new_v4().to_string()),
                    usual if matches!(parameters[at].0, Word) => db.quoted(usual),
                    usual => usual.to_owned(),
                });
                let mut arguments: Vec<String> = arguments.collect();
                if db.engine.kind == Kind::MySql && ["adjust_v1", "adjust_window_v1", "throttle_v1"].contains(routine) {
                    // In the caller's transaction.
                    arguments.push("false".into());
                    arguments.extend((*routine == "throttle_v1").then(|| "@outcome".into()));
                }
                let call = match *routine {
                    "take_v1" => db.taking(&arguments.join(", ")),
                    _ => db.calling(&named(db, routine), &arguments.join(", ")),
                };
                let before = db.row(&key).await?;
                let refusal = match db.sql(call.clone()).await {
                    Ok(_) if must => Some("nothing".to_owned()),
                    Ok(_) => None,
                    Err(error) => {
                        ensure!(
                            db.row(&key).await? == before && db.row(&new).await?.is_none(),
                            "{call} moved something"
                        );
                        let error = error.into_database_error().context(call.clone())?;
                        let code = error.code().unwrap_or_default().into_owned();
                        (!codes.contains(&&*code)).then(|| format!("{code}: {}", error.message()))
                    }
                };
                wrong.extend(refusal.map(|refusal| format!("{}\n  {refusal}", short(&call))));
            }
        }
    }
    ensure!(wrong.is_empty(), "refused otherwise than documented:\n{}", wrong.join("\n"));
    Ok(())
}

/// The same routine's name on this engine.
fn named(db: &TestDb, routine: &str) -> String {
    let for_people = ["request_", "rate_"].iter().any(|prefix| routine.starts_with(prefix));
    if for_people || db.engine.kind == Kind::Postgres { routine.to_owned() } else { format!("token_{routine}") }
}

/// Extreme values that a parameter can hold.
fn extremes(db: &TestDb, parameter: Parameter) -> Vec<String> {
    let texts = |texts: &[&str]| texts.iter().map(|text| db.quoted(text)).collect::<Vec<_>>();
    let mut values = match parameter {
        Id => texts(&["", " ", "\u{1F980}", &"x".repeat(255), &"x".repeat(256), &"\u{1F980}".repeat(64)]),
        Whole | Wait => [i64::MIN, i64::MIN + 1, -1, 0, 1, i64::MAX / 2, i64::MAX / 2 + 1, i64::MAX - 1, i64::MAX]
            .map(|whole| whole.to_string())
            .into(),
        Seconds => ["-9999999999", "-1", "0", "0.000000001", "0.0000000004", "9999999999"].map(str::to_owned).into(),
        Word => texts(&["", "never"]),
        Uuid => texts(&["00000000-0000-0000-0000-000000000000"]),
    };
    if parameter == Seconds && db.engine.kind == Kind::Postgres {
        // PostgreSQL's numeric has all of these, and decimal(19, 9) of MySQL and MariaDB has none.
        values.extend(["'NaN'", "'infinity'", "'-infinity'", "1e30", "-1e30", "1e300"].map(str::to_owned));
    }
    if parameter == Id && db.engine.kind == Kind::Postgres {
        values.push(db.quoted(&"x".repeat(100_000)));
    }
    values.push("null".into());
    values
}

/// Values that a parameter cannot hold.
fn beyond(db: &TestDb, parameter: Parameter) -> Vec<String> {
    let postgres = db.engine.kind == Kind::Postgres;
    match parameter {
        // A double, whose range includes every such value.
        Wait if postgres => vec!["'one'".into(), "'NaN'".into()],
        Whole | Wait => ["9223372036854775808", "-9223372036854775809", "1e30", "'one'"].map(str::to_owned).into(),
        Seconds | Uuid if postgres => vec!["'one'".into()],
        Seconds => ["1e10", "-1e10", "1e308", "'one'", "'NaN'"].map(str::to_owned).into(),
        Uuid => vec![db.quoted(&"x".repeat(37))],
        Id if !postgres => vec![db.quoted(&"x".repeat(257)), db.quoted(&"x".repeat(100_000))],
        Word if !postgres => vec![db.quoted(&"x".repeat(81))],
        Id | Word => Vec::new(),
    }
}

fn short(call: &str) -> String {
    if call.len() > 400 { format!("{}…", call.chars().take(400).collect::<String>()) } else { call.to_owned() }
}

const START: i64 = 1_800_000_000_123_456_789;
