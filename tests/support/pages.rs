//! The programs of the pages, which `cargo test --doc` compiles and runs.

#[doc = include_str!("../../docs/start/postgres.md")]
#[doc = include_str!("../../docs/start/mysql.md")]
#[doc = include_str!("../../docs/start/sqlite.md")]
#[doc = include_str!("../../docs/start/yugabytedb.md")]
#[doc = include_str!("../../docs/start/citus.md")]
#[doc = include_str!("../../docs/concepts.md")]
#[doc = include_str!("../../docs/choosing.md")]
#[doc = include_str!("../../docs/sliding-windows.md")]
#[doc = include_str!("../../docs/recipes.md")]
#[doc = include_str!("../../docs/waiting.md")]
#[doc = include_str!("../../docs/outages.md")]
#[doc = include_str!("../../docs/operations.md")]
#[doc = include_str!("../../docs/growing.md")]
#[doc = include_str!("../../docs/observability.md")]
#[doc = include_str!("../../docs/testing.md")]
struct Pages;
