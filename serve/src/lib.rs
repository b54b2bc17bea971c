#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

mod address;
mod admin;
mod answer;
mod check;
mod config;
mod counts;
mod dashboard;
mod first_request;
mod gate;
mod guard;
mod json;
mod limiters;
mod listener;
mod problem;
mod proto;
mod rls;
mod run;
mod server;
mod tls;
mod v1;
mod warning_interval;

pub use address::{Address, AddressError};
pub use config::{Config, ConfigError};
pub use dashboard::BoardSource;
pub use run::{Options, ServeError, run};
pub use server::Server;
pub use tls::Tls;
