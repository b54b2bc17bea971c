//! The schema of the JSON that commands print.

use std::process::ExitCode;

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use crate::apply::ApplyJson;
use crate::charge::ChargeJson;
use crate::denied::DenialJson;
use crate::doctor::DoctorJson;
use crate::each_key::FoundJson;
use crate::explain::ExplainJson;
use crate::levels::BucketJson;
use crate::mode::ModeOutputJson;
use crate::output::{ChangeJson, say_json};
use crate::overrides::OverrideJson;
use crate::peek::LevelJson;
use crate::plan::{DeletedPlanJson, PlanJson};
use crate::reset::ResetJson;
use crate::simulate::SimulationJson;
use crate::sweep::SweepJson;
use crate::take::TakeJson;
use crate::usage::UsageOutputJson;

/// Prints the schema.
pub(crate) fn run() -> anyhow::Result<ExitCode> {
    say_json(&document())?;
    Ok(ExitCode::SUCCESS)
}

/// The document with one property for each command: the schema of its output.
pub(crate) fn document() -> Value {
    let mut generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
    let commands = [
        ("apply", generator.subschema_for::<ApplyJson<'_>>()),
        ("charge", generator.subschema_for::<ChargeJson>()),
        ("create", generator.subschema_for::<ChangeJson<BucketJson>>()),
        ("delete", generator.subschema_for::<Vec<FoundJson>>()),
        ("denied", generator.subschema_for::<Vec<DenialJson>>()),
        ("doctor", generator.subschema_for::<DoctorJson<'_>>()),
        ("explain", generator.subschema_for::<ExplainJson>()),
        ("list", generator.subschema_for::<Vec<LevelJson>>()),
        ("mode", generator.subschema_for::<ModeOutputJson>()),
        ("peek", generator.subschema_for::<Vec<LevelJson>>()),
        ("plan delete", generator.subschema_for::<DeletedPlanJson>()),
        ("plan list", generator.subschema_for::<Vec<PlanJson>>()),
        ("plan override", generator.subschema_for::<ChangeJson<OverrideJson>>()),
        ("plan overrides", generator.subschema_for::<Vec<OverrideJson>>()),
        ("plan set", generator.subschema_for::<ChangeJson<PlanJson>>()),
        ("reset", generator.subschema_for::<ResetJson>()),
        ("simulate", generator.subschema_for::<SimulationJson<'_>>()),
        ("sweep", generator.subschema_for::<SweepJson>()),
        ("take", generator.subschema_for::<TakeJson>()),
        ("usage", generator.subschema_for::<UsageOutputJson>()),
    ];
    let commands: Map<_, _> =
        commands.into_iter().map(|(command, schema)| (command.to_owned(), schema.to_value())).collect();
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "tollgate COMMAND --json",
        "description": "One property for each command: the schema of what it prints with --json. \
                        Fields that end in _ms are durations in whole milliseconds, rounded up. \
                        Fields that end in _at or _until are times in UTC. Fields are added and never change.",
        "properties": commands,
        "$defs": generator.take_definitions(true),
    })
}
