//! Runs the CLI `tollgate` on real databases.

#[cfg(unix)]
mod accounts;
mod apply;
mod clients;
mod command;
mod connecting;
mod databases;
mod doctor;
mod documentation;
mod environment;
mod everyday;
mod grants;
mod hints;
#[cfg(unix)]
mod interrupted;
mod json;
mod listing;
mod live;
mod migration_files;
mod migrations;
mod modes;
mod plans;
mod privileges;
#[cfg(unix)]
mod processes;
mod refused;
mod restores;
mod running;
mod schema;
mod secrets;
mod shadowing;
mod streams;
#[cfg(unix)]
mod unanswered;
