//! Errors, hints and notes fit the terminal.

use super::pty::Pty;
use crate::databases::{Database, Engine};

#[test]
fn error_and_hint_break_between_words() -> anyhow::Result<()> {
    let database = Database::migrated(Engine::Sqlite);
    let narrow = "sh -c 'stty cols 60; exec \"$0\" \"$@\"'";
    let (sent, status) = Pty::start_by(&database, narrow, "take user:42")?.end()?;
    assert_eq!(status.code(), Some(64), "{sent:?}");
    let shown = anstream::adapter::strip_str(&sent).to_string().replace('\r', "");
    let expected = "\
error: there is no bucket 'user:42'
hint: make it with
      `tollgate create --capacity 2 --per 1h user:42`, or
      name its limit: `--quota 10/s`, `--plan NAME`
";
    assert_eq!(shown, expected);
    Ok(())
}
