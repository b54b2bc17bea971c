//! Calls of every routine that the application's role can execute, as the catalog lists them, with random arguments.

use anyhow::Context;
use tollgate::Key;
use uuid::Uuid;

use crate::engines::Kind;
use crate::test_db::{TestDb, hex};

/// A routine and its parameters.
pub struct Routine {
    pub name: String,
    parameters: Vec<Parameter>,
}

struct Parameter {
    direction: String,
    name: String,
    kind: String,
}

/// A statement that calls a routine.
pub struct Call {
    pub sql: String,
    /// Whether an answer of 'granted' must have taken tokens: the call has no request id and is not a read.
    pub takes: bool,
}

/// The routines that the login of `app` can execute.
pub async fn granted(owner: &TestDb, app: &TestDb) -> anyhow::Result<Vec<Routine>> {
    let rows = if owner.engine.kind == Kind::Postgres {
        app.sql(
            "select p.proname::text as routine, string_agg(concat_ws(' ', 'IN', p.proargnames[n],
                    pg_catalog.format_type(p.proargtypes[n - 1], null)), ',' order by n) as parameters
               from pg_catalog.pg_proc p cross join pg_catalog.generate_series(1, 40) n
              where p.pronamespace = 'tollgate'::regnamespace and n <= p.pronargs
                and pg_catalog.has_function_privilege(p.oid, 'execute')
              group by p.oid, p.proname order by p.proname",
        )
        .await?
    } else {
        // MySQL shows the parameters of a routine to its owner only.
        let grants = include_str!("../../../../migrations/grants/mysql.sql").lines();
        let granted: Vec<String> = grants
            .filter_map(|line| line.strip_prefix("grant execute on procedure ")?.strip_suffix(" to tollgate_app;"))
            .map(|name| format!("'{name}'"))
            .collect();
        owner
            .sql(format!(
                "select specific_name as routine,
                            group_concat(concat_ws(' ', parameter_mode, parameter_name, data_type)
                                         order by ordinal_position separator ',') as parameters
                       from information_schema.parameters
                      where specific_schema = database() and specific_name in ({})
                      group by specific_name order by specific_name",
                granted.join(", ")
            ))
            .await?
    };
    rows.iter()
        .map(|row| {
            let parameters = row.text("parameters")?.context("parameters")?.split(',').map(|parameter| {
                let mut words = parameter.splitn(3, ' ').map(str::to_owned);
                let mut next = || words.next().context("a mode, a name and a type");
                Ok(Parameter { direction: next()?, name: next()?, kind: next()? })
            });
            let name = row.text("routine")?.context("a name")?.to_owned();
            Ok(Routine { name, parameters: parameters.collect::<anyhow::Result<_>>()? })
        })
        .collect()
}

/// Draws random calls, equal for equal seeds.
pub struct Draw<'a> {
    random: fastrand::Rng,
    db: &'a TestDb,
    keys: &'a [Key],
    /// Request ids for repeated use.
    ids: Vec<Uuid>,
    /// Whether the routine adjusts a request, which it identifies by an id.
    adjusts: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Value {
    Null,
    /// A number or a boolean, or a word that the engine must refuse as one.
    Word(String),
    Text(Vec<u8>),
}

impl<'a> Draw<'a> {
    pub fn new(seed: u64, db: &'a TestDb, keys: &'a [Key]) -> Self {
        let ids = (1..9).map(Uuid::from_u128).collect();
        Self { random: fastrand::Rng::with_seed(seed), db, keys, ids, adjusts: false }
    }

    /// A call of the routine with `hostile` hostile arguments and usual values for the others.
    pub fn call(&mut self, routine: &Routine, hostile: usize) -> Call {
        self.adjusts = routine.name.contains("adjust");
        let inputs: Vec<usize> =
            (0..routine.parameters.len()).filter(|&at| routine.parameters[at].direction != "OUT").collect();
        let wrong: Vec<usize> = (0..hostile).map(|_| inputs[self.random.usize(..inputs.len())]).collect();
        let length = if self.keys.len() == 1 { 1 } else { self.random.usize(1..4) };
        let (mut arguments, mut before, mut after) = (Vec::new(), String::new(), String::new());
        let mut takes = !["peek", "explain"].iter().any(|read| routine.name.contains(read));
        for (at, parameter) in routine.parameters.iter().enumerate() {
            let is_wrong = wrong.contains(&at);
            let variable = format!("@{}", parameter.name);
            match &*parameter.direction {
                "OUT" => {
                    if parameter.name == "o_outcome" {
                        after = "; select @o_outcome as outcome".into();
                    }
                    arguments.push(variable);
                    continue;
                }
                "INOUT" => before = format!("set {variable} = {}; ", self.scalar(parameter, is_wrong)),
                _ => {}
            }
            let argument = match parameter.kind.strip_suffix("[]") {
                _ if parameter.direction == "INOUT" => variable,
                Some(kind) => self.array(&parameter.name, kind, length, is_wrong),
                None if parameter.kind == "longtext" => self.json(&routine.name, &parameter.name, length, is_wrong),
                None => self.scalar(parameter, is_wrong),
            };
            takes &= match &*parameter.name {
                "p_receipt" | "p_request_id" | "p_receipts" | "p_request_ids" => argument.starts_with("null"),
                "p_taking" => argument == "true",
                _ => true,
            };
            arguments.push(argument);
        }
        let call = self.db.calling(&routine.name, &arguments.join(", "));
        Call { sql: format!("{before}{call}{after}"), takes }
    }

    fn scalar(&mut self, parameter: &Parameter, is_wrong: bool) -> String {
        let value = self.value(&parameter.name, &parameter.kind, is_wrong);
        self.literal(&value, &parameter.kind)
    }

    fn array(&mut self, name: &str, kind: &str, length: usize, is_wrong: bool) -> String {
        if is_wrong && self.random.u8(..4) == 0 {
            return format!("null::{kind}[]");
        }
        let wrong_place = if is_wrong { self.random.usize(..=length) } else { usize::MAX };
        // An array with one element too many, if it is the wrong one.
        let places = length + usize::from(wrong_place == length);
        let values: Vec<Value> = (0..places).map(|place| self.value(name, kind, place == wrong_place)).collect();
        let none_is_needed =
            ["p_request_ids", "p_plans", "p_capacities", "p_refills", "p_refill_seconds"].contains(&name);
        if none_is_needed && values.iter().all(|value| *value == Value::Null) && self.random.bool() {
            return format!("null::{kind}[]");
        }
        let values: Vec<String> = values.iter().map(|value| self.literal(value, kind)).collect();
        format!("array[{}]::{kind}[]", values.join(", "))
    }

    fn json(&mut self, routine: &str, parameter: &str, length: usize, is_wrong: bool) -> String {
        const LIMIT: &[&str] =
            &["hex", "p_cost", "p_min_remaining", "p_capacity", "p_refill_seconds", "p_refill", "hex_plan"];
        if is_wrong && self.random.u8(..4) == 0 {
            return ["null", "'{}'", "'[[]]'", "'[[\"'", "''"][self.random.usize(..5)].into();
        }
        let fields: &[&str] = match (routine, parameter) {
            ("request_tokens_all", _) => &["p_id", "p_tokens", "p_plan"],
            ("request_tokens_many", _) => &["p_id", "p_tokens"],
            ("token_count_denials_v1", _) => &["hex", "p_denied"],
            (_, "p_ids") => &["hex"],
            (_, "p_limits") | ("token_take_all_batch_v1", _) => LIMIT,
            (_, "p_adjustments") => &[
                "p_kind",
                "p_receipt",
                "hex",
                "p_cost",
                "p_granted",
                "p_scheduled_at",
                "p_tokens",
                "p_place",
                "p_max_debt",
            ],
            _ => &[
                "hex",
                "p_cost",
                "p_max_wait",
                "p_min_remaining",
                "p_capacity",
                "p_refill_seconds",
                "p_refill",
                "hex_plan",
                "p_receipt",
                "p_hold",
                "p_times",
            ],
        };
        let wrong_place = if is_wrong { self.random.usize(..length) } else { usize::MAX };
        let entries: Vec<String> = (0..length)
            .map(|place| {
                let wrong_field = if place == wrong_place { self.random.usize(..fields.len()) } else { usize::MAX };
                let values: Vec<String> = fields
                    .iter()
                    .enumerate()
                    .map(|(at, field)| {
                        let kind = if TEXTS.contains(field) { "text" } else { "bigint" };
                        match self.value(field, kind, at == wrong_field) {
                            Value::Null => "null".to_owned(),
                            Value::Word(word) if word.parse::<f64>().is_ok_and(f64::is_finite) => word,
                            Value::Word(word) => format!("{word:?}"),
                            Value::Text(bytes) if field.starts_with("hex") => format!("\"{}\"", hex(&bytes)),
                            Value::Text(bytes) => serde_json::Value::from(String::from_utf8_lossy(&bytes)).to_string(),
                        }
                    })
                    .collect();
                if fields.len() == 1 { values[0].clone() } else { format!("[{}]", values.join(",")) }
            })
            .collect();
        let entries = entries.join(",");
        let json = if routine == "token_take_all_batch_v1" { format!("[[{entries}]]") } else { format!("[{entries}]") };
        self.db.quoted(&json)
    }

    fn value(&mut self, name: &str, kind: &str, is_wrong: bool) -> Value {
        if is_wrong {
            let is_text = ["text", "varchar", "char", "uuid"].contains(&kind);
            return match self.random.choice(if is_text { HOSTILE_TEXTS } else { HOSTILE_NUMBERS }) {
                None | Some(&b"null") => Value::Null,
                Some(&b"256 bytes") => Value::Text(vec![b'x'; 256]),
                Some(text) if is_text => Value::Text(text.to_vec()),
                Some(word) => Value::Word(String::from_utf8_lossy(word).into_owned()),
            };
        }
        let word = match name {
            "p_id" | "p_ids" | "hex" => {
                let key = self.random.choice(self.keys).expect("some keys");
                return Value::Text(key.as_str().as_bytes().to_vec());
            }
            // The routine creates a bucket with its own rate, and refuses a provisioned one.
            "p_rate_id" => return Value::Text(self.keys[self.keys.len() - 1].as_str().as_bytes().to_vec()),
            "p_receipt" | "p_request_id" | "p_receipts" | "p_request_ids"
                if self.adjusts || self.random.u8(..3) == 0 =>
            {
                let new = Uuid::from_u128(self.random.u128(..));
                let id = if self.random.bool() { new } else { *self.random.choice(&self.ids).expect("some ids") };
                return Value::Text(id.to_string().into_bytes());
            }
            "p_kind" | "p_kinds" => {
                let kind = self.random.choice(["refund", "settle", "cancel"]).expect("kinds");
                return Value::Text(kind.into());
            }
            "p_max_requests" => "5",
            "p_interval" => "86400000000000",
            "p_resolution" => "3600000000000",
            "p_interval_seconds" => "86400",
            "p_resolution_seconds" => "3600",
            "p_window_seconds" => "10",
            "p_limit" => "100",
            "p_taking" => "true",
            "p_counting" | "p_exclusive" | "p_in_window" => "false",
            "p_granted" | "p_scheduled_at" | "p_max_wait" | "p_max_waits" | "p_min_remaining" | "p_min_remainings"
            | "p_hold" | "p_holds" | "p_max_wait_ms" | "p_retry_after_ms" | "p_wait" | "p_place" => "0",
            "p_capacity" | "p_capacities" | "p_refill_seconds" | "p_refill" | "p_refills" | "p_plan" | "p_plans"
            | "hex_plan" | "p_max_debt" | "p_max_debts" | "p_receipt" | "p_request_id" | "p_receipts"
            | "p_request_ids" => {
                return Value::Null;
            }
            _ => "1",
        };
        Value::Word(word.to_owned())
    }

    fn literal(&self, value: &Value, kind: &str) -> String {
        let is_postgres = self.db.engine.kind == Kind::Postgres;
        match value {
            Value::Null if is_postgres => format!("null::{kind}"),
            Value::Null => "null".to_owned(),
            Value::Word(word) if is_postgres => format!("'{word}'::{kind}"),
            Value::Word(word) if word.contains("infinity") || word == "NaN" => format!("'{word}'"),
            Value::Word(word) => word.clone(),
            Value::Text(bytes) if is_postgres => {
                format!("convert_from(decode('{}', 'hex'), 'UTF8')::{kind}", hex(bytes))
            }
            Value::Text(bytes) => format!("x'{}'", hex(bytes)),
        }
    }
}

const TEXTS: &[&str] = &["hex", "hex_plan", "p_id", "p_kind", "p_receipt", "p_refill"];

const HOSTILE_NUMBERS: &[&[u8]] = &[
    b"null",
    b"NaN",
    b"infinity",
    b"-infinity",
    b"-1",
    b"0",
    b"1.5",
    b"-0.000000001",
    b"0.000000001",
    b"2",
    b"5",
    b"-9223372036854775808",
    b"-9223372036854775807",
    b"9223372036854775807",
    b"9223372036854775808",
    b"4611686018427387903",
    b"3155760000000000000",
    b"31622400000000000",
    b"9007199254740992",
    b"1e30",
    b"-1e30",
];

/// Texts that resemble other keys without being one of them.
const HOSTILE_TEXTS: &[&[u8]] = &[
    b"null",
    b"256 bytes",
    b"",
    b" ",
    b"\0",
    b"\xff",
    b"\xc3\x28",
    b"\xed\xa0\x80",
    b"victim\0",
    b"victim ",
    b"VICTIM",
    b"victim\xff",
    b"vict%",
    b"\x01victim",
    b"'; drop table token_buckets; --",
    b"interval",
    b"continuous",
    b"cancel",
    b"00000000-0000-0000-0000-000000000000",
    b"{00000000-0000-0000-0000-000000000000}",
];
