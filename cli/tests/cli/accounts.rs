//! A SQLite file that several accounts of a host use. Only root can run the CLI as other accounts.

use std::os::unix::fs::{PermissionsExt, chown};
use std::process::Command;

use crate::command::Ran;
use crate::databases::{Database, Engine};

#[test]
fn reader_leaves_no_file_that_the_owner_cannot_write() {
    let Some(shared) = Shared::new(0o1777, 0o644) else { return };
    shared.run(READER, "sqlite:app.db", &["list"]).ended(69).says(&[
        "would create app.db-wal and app.db-shm, which the owner of app.db could not write",
        &format!("run this as user {OWNER}, or add ?immutable=1"),
        "move it into a directory of its own",
    ]);
    shared.run(READER, "sqlite:app.db", &["doctor"]).ended(69).says(&["fail  connection", "would create app.db-wal"]);
    assert_eq!(shared.files(), ["app.db", "tollgate"]);
    shared.run(READER, "sqlite:app.db?immutable=1", &["list"]).ended(0).says(&["bucket"]);
    shared.run(OWNER, "sqlite:app.db", &["take", "bucket"]).ended(0);
    assert_eq!(shared.files(), ["app.db", "tollgate"]);
}

#[test]
fn reader_beside_a_service_is_answered() {
    let Some(shared) = Shared::new(0o1777, 0o644) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let url = format!("sqlite:{}", shared.database.directory.join("app.db").display());
    let service = runtime.block_on(<sqlx::SqliteConnection as sqlx::Connection>::connect(&url)).expect("a connection");
    let service = runtime.block_on(async {
        let mut service = service;
        sqlx::query("select count(*) from token_buckets").execute(&mut service).await.map(|_| service)
    });
    assert_eq!(shared.files(), ["app.db", "app.db-shm", "app.db-wal", "tollgate"]);
    shared.run(READER, "sqlite:app.db", &["list"]).ended(0).says(&["bucket"]);
    shared.run(OWNER, "sqlite:app.db", &["take", "bucket"]).ended(0);
    drop(service);
}

#[test]
fn unwritable_file_of_another_account_is_reported() {
    let Some(shared) = Shared::new(0o1777, 0o644) else { return };
    for file in ["app.db-wal", "app.db-shm"].map(|name| shared.database.directory.join(name)) {
        std::fs::write(&file, "").expect("it is written");
        chown(&file, Some(READER), Some(READER)).expect("root gives it away");
    }
    let chown = format!("chown {OWNER}:{GROUP} app.db-wal app.db-shm");
    for arguments in [&["take", "bucket"][..], &["doctor"]] {
        shared
            .run(OWNER, "sqlite:app.db", arguments)
            .ended(69)
            .says(&[&format!("user {READER} created app.db-wal, and this user may not write it"), &chown]);
    }
    let mended = Command::new("sh").args(["-c", &chown]).current_dir(&shared.database.directory).status();
    assert!(mended.expect("it starts").success());
    shared.run(OWNER, "sqlite:app.db", &["take", "bucket"]).ended(0);
}

#[test]
fn group_shares_a_file_in_a_directory_that_passes_its_group_on() {
    let Some(shared) = Shared::new(0o770, 0o660) else { return };
    shared.run(READER, "sqlite:app.db", &["take", "bucket"]).ended(69).says(&["chmod g+ws ."]);
    shared.set_mode(".", 0o2770);
    for user in [READER, OWNER] {
        shared.run(user, "sqlite:app.db", &["take", "bucket"]).ended(0);
    }
}

/// A database with a bucket, which belongs to `OWNER` and `GROUP` as its directory does.
struct Shared {
    database: Database,
}

impl Shared {
    /// Returns `None` if this user is not root.
    fn new(directory: u32, file: u32) -> Option<Self> {
        let shared = Self { database: Database::migrated(Engine::Sqlite) };
        shared.database.run(&["create", "bucket", "--quota", "9 once"]).ended(0);
        // Other accounts can be unable to reach the directory of the build.
        std::fs::copy(env!("CARGO_BIN_EXE_tollgate"), shared.database.directory.join("tollgate")).expect("a copy");
        for (name, mode) in [("app.db", file), (".", directory)] {
            chown(shared.database.directory.join(name), Some(OWNER), Some(GROUP)).ok()?;
            shared.set_mode(name, mode);
        }
        Some(shared)
    }

    fn set_mode(&self, name: &str, mode: u32) {
        let path = self.database.directory.join(name);
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("root can");
    }

    /// Runs the CLI as a user of `GROUP`, with a first group of the user's own number.
    fn run(&self, user: u32, url: &str, arguments: &[&str]) -> Ran {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", &user.to_string(), "--regid", &user.to_string(), "--groups", &GROUP.to_string()]);
        command.args(["./tollgate", "--database-url", url]).args(arguments).current_dir(&self.database.directory);
        Ran::new(command.env_remove("DATABASE_URL").output().expect("it starts"))
    }

    fn files(&self) -> Vec<String> {
        let files = std::fs::read_dir(&self.database.directory).expect("a directory");
        let mut names: Vec<_> =
            files.map(|file| file.expect("a file").file_name().into_string().expect("UTF-8")).collect();
        names.sort();
        names
    }
}

/// Users and a group that no system has.
const OWNER: u32 = 54321;
const READER: u32 = 54322;
const GROUP: u32 = 54323;
