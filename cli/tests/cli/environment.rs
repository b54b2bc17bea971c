//! The environment variables of the CLI: the database URL and the mode.

use std::path::Path;

use crate::command::{Ran, SECRET, tollgate};
use crate::databases::{Database, Engine};

#[test]
fn url_is_read_from_env_file() {
    let database = Database::migrated(Engine::Sqlite);
    std::fs::write(database.directory.join(".env"), "OTHER=1\nDATABASE_URL=sqlite:app.db\n").expect("it is written");
    let ran = tollgate(None, &database.directory).args(["create", "a", "--quota", "1/s"]).output().expect("it starts");
    Ran::new(ran).ended(0);
    // The command inherits no variable of the file.
    let mut command = tollgate(None, &database.directory);
    command.args(["run", "a", "--", "sh", "-c", "echo ${OTHER-none}"]);
    assert_eq!(Ran::new(command.output().expect("it starts")).ended(0).out, "none\n");
}

#[test]
fn unreadable_env_file_is_an_error() {
    let database = Database::migrated(Engine::Sqlite);
    let list = |text: &str| {
        std::fs::write(database.directory.join(".env"), text).expect("it is written");
        Ran::new(tollgate(None, &database.directory).arg("list").output().expect("it starts"))
    };
    let url = format!("postgres://app:{SECRET} x@localhost/app");
    list(&format!("# the app\nOTHER=1\nDATABASE_URL={url}\n")).ended(66).says(&["line 3 of ", "in single quotes"]);
    list(&format!("DATABASE_URL='{url}\n")).ended(66).says(&["line 1 of ", "in single quotes"]);
    list("OTHER=two words\nDATABASE_URL=sqlite:app.db\n").ended(0);
    list("\u{feff}DATABASE_URL=sqlite:app.db\n").ended(0);
    list("OTHER=1\n").ended(2).says(&["no database is given"]);
}

#[cfg(unix)]
#[test]
fn env_file_writable_by_others_is_refused() {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    let database = Database::migrated(Engine::Sqlite);
    let (inner, file) = (database.directory.join("service"), database.directory.join(".env"));
    std::fs::create_dir(&inner).expect("a directory");
    std::fs::write(&file, "DATABASE_URL=sqlite:../app.db\n").expect("it is written");
    let list = || Ran::new(tollgate(None, &inner).arg("list").output().expect("it starts"));
    let set = |mode| std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).expect("it is its owner's");
    for mode in [0o620, 0o602] {
        set(mode);
        list().ended(66).says(&["/.env is not trusted: other users can write it", "hint: ", "chmod go-w"]);
        Ran::new(tollgate(None, &inner).output().expect("it starts")).ended(66).says(&["is not trusted"]);
    }
    set(0o644);
    list().ended(0);
    // Only root can change a file's owner.
    if chown(&file, Some(OTHER), None).is_ok() {
        list().ended(66).says(&[&format!("/.env is not trusted: user {OTHER} owns it")]);
        // Both links are refused: the user's own link to a foreign file, and a foreign link to the user's file.
        symlink(&file, inner.join(".env")).expect("a link");
        list().ended(66).says(&[&format!("/service/.env is not trusted: user {OTHER} owns it")]);
        chown(&file, Some(0), None).expect("root gives it back");
        std::os::unix::fs::lchown(inner.join(".env"), Some(OTHER), None).expect("root gives the link away");
        list().ended(66).says(&[&format!("/service/.env is not trusted: user {OTHER} owns it")]);
    }
}

/// A user other than root and the user of the tests.
#[cfg(unix)]
const OTHER: u32 = 54321;

/// The file name in the error, because the database does not exist.
fn requested(environment: Option<&str>, directory: &Path, arguments: &[&str]) -> String {
    let ran = tollgate(environment, directory).args(arguments).arg("list").output().expect("it starts");
    let ran = Ran::new(ran).ended(69);
    ran.err.split_once("there is no file ").and_then(|(_, rest)| rest.lines().next()).expect("a file").to_owned()
}

#[test]
fn nearest_env_file_in_parent_directories_is_read() {
    let database = Database::empty(Engine::Sqlite);
    let (middle, inner) = (database.directory.join("service"), database.directory.join("service/src"));
    std::fs::create_dir_all(&inner).expect("directories");
    let write = |directory: &Path, text: &str| std::fs::write(directory.join(".env"), text).expect("it is written");
    write(&database.directory, "DATABASE_URL=sqlite:outer.db\n");
    assert_eq!(requested(None, &inner, &[]), "outer.db");
    write(&middle, "DATABASE_URL=sqlite:middle.db\n");
    assert_eq!(requested(None, &inner, &[]), "middle.db");
    assert_eq!(requested(None, &database.directory, &[]), "outer.db");
    // Reports a file of a parent directory only, because the user knows of the one here.
    let printed = |directory: &Path| Ran::new(tollgate(None, directory).arg("list").output().expect("it starts")).err;
    let named = format!("tollgate: DATABASE_URL is that of {}\n", middle.join(".env").display());
    assert!(printed(&inner).starts_with(&named), "{}", printed(&inner));
    assert!(!printed(&middle).contains("DATABASE_URL"), "{}", printed(&middle));
    // Reads only the nearest file, like sqlx.
    write(&inner, "OTHER=1\n");
    Ran::new(tollgate(None, &inner).arg("list").output().expect("it starts")).ended(2).says(&["no database is given"]);
}

#[test]
fn option_overrides_environment_which_overrides_file() {
    let database = Database::empty(Engine::Sqlite);
    std::fs::write(database.directory.join(".env"), "DATABASE_URL=sqlite:file.db\n").expect("it is written");
    let option = ["--database-url", "sqlite:option.db"];
    assert_eq!(requested(None, &database.directory, &[]), "file.db");
    assert_eq!(requested(Some("sqlite:environment.db"), &database.directory, &[]), "environment.db");
    assert_eq!(requested(None, &database.directory, &option), "option.db");
    assert_eq!(requested(Some("sqlite:environment.db"), &database.directory, &option), "option.db");
    assert_eq!(requested(Some(" sqlite:environment.db\n"), &database.directory, &[]), "environment.db");
    // The file is not read if the environment has a URL.
    std::fs::write(database.directory.join(".env"), "DATABASE_URL='\n").expect("it is written");
    assert_eq!(requested(Some("sqlite:environment.db"), &database.directory, &[]), "environment.db");
}

#[test]
fn environment_mode_applies_to_take_and_run() {
    let database = Database::migrated(Engine::Sqlite);
    let run = |mode: &str, arguments: &[&str]| {
        Ran::new(database.command(arguments).env("TOLLGATE_MODE", mode).output().expect("it starts"))
    };
    let take = ["take", "a", "--quota", "1 per 1d"];
    run("block", &take).ended(75).says(&["denied by a (mode block)"]);
    run("off", &["run", "a", "--", "echo", "ran"]).ended(0).says(&["ran"]);
    run("enforce", &take).ended(0);
    run("shadow", &take).ended(0).says(&["granted (mode shadow)"]);
    let wrong = run("of", &take).ended(2).says(&["TOLLGATE_MODE", "\"shadow\""]);
    assert_eq!(wrong.out, "");
    run("of", &["list"]).ended(0);
}

#[test]
fn environment_mode_without_store_needs_no_database() {
    let database = Database::empty(Engine::Sqlite);
    for url in [None, Some("postgres://app@localhost:1/app"), Some("sqlite:none.db")] {
        let run = |mode: &str, arguments: &[&str]| {
            let mut command = tollgate(url, &database.directory);
            Ran::new(command.args(arguments).env("TOLLGATE_MODE", mode).output().expect("it starts"))
        };
        let (take, command) = (["take", "a", "b", "--plan", "free"], ["run", "a", "--", "echo", "ran"]);
        run("off", &take).ended(0).says(&["granted (mode off): no limit for a"]);
        assert_eq!(run("off", &command).ended(0).out, "ran\n");
        run("block", &take).ended(75).says(&["denied by a (mode block): until another mode is set"]);
        let blocked = run("block", &["run", "a", "-E", "9", "--", "echo", "ran"]).ended(9);
        assert_eq!(blocked.says(&["denied by a (mode block)"]).out, "");
        for arguments in [&take[..], &command] {
            assert_eq!(run("of", arguments).ended(2).says(&["TOLLGATE_MODE", "\"block\""]).out, "");
            // Other modes need the database.
            for mode in ["", "enforce", "shadow"] {
                assert_eq!(run(mode, arguments).ended(if url.is_none() { 2 } else { 69 }).out, "", "{mode}");
            }
        }
        // Commands that read or change a database need one in every mode.
        run("off", &["list"]).ended(if url.is_none() { 2 } else { 69 });
    }
}
