//! The privileges that the printed grants give to `tollgate_app` and `tollgate_operator`, from the text of the grants.

/// One privilege on one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DocumentedGrant {
    /// A table, a view, a schema, or a routine; on PostgreSQL with its argument types.
    pub(super) object: String,
    /// `None` is the whole object.
    pub(super) column: Option<String>,
    pub(super) privilege: String,
    /// Whether only operators have it.
    pub(super) of_operator: bool,
}

/// The privileges in a script of grants.
pub(super) fn documented_grants(script: &str) -> Vec<DocumentedGrant> {
    let code: String =
        script.lines().filter(|line| !line.trim_start().starts_with("--")).flat_map(|l| [l, " "]).collect();
    let mut all = Vec::new();
    for statement in code.split(';') {
        let words: Vec<&str> = statement.split_whitespace().collect();
        let statement = words.join(" ");
        let Some((privileges, rest)) = statement.strip_prefix("grant ").and_then(|rest| rest.split_once(" on ")) else {
            continue;
        };
        let Some((objects, role)) = rest.rsplit_once(" to ") else { continue };
        let objects = ["function ", "procedure ", "schema "]
            .iter()
            .find_map(|kind| objects.strip_prefix(kind))
            .unwrap_or(objects);
        for object in listed(objects) {
            for privilege in listed(privileges) {
                let (privilege, columns) = privilege.split_once(" (").unwrap_or((privilege, ""));
                let columns = columns.trim_end_matches(')');
                for column in columns.split(", ") {
                    all.push(DocumentedGrant {
                        object: object.replace("( ", "("),
                        column: Some(column.to_owned()).filter(|column| !column.is_empty()),
                        privilege: privilege.to_owned(),
                        of_operator: role == "tollgate_operator",
                    });
                }
            }
        }
    }
    all
}

/// The parts between commas that are not within parentheses.
fn listed(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    text.split(move |letter| {
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        letter == ',' && depth == 0
    })
    .map(str::trim)
}

#[cfg(test)]
mod tests {
    use sqlx::{MySql, Postgres};
    use tollgate::store::grants;

    use super::*;

    #[test]
    fn privileges_are_read_from_printed_grants() {
        let [postgres, mysql] =
            [grants::<Postgres>(), grants::<MySql>()].map(|script| documented_grants(script.expect("roles")));
        let has = |all: &[DocumentedGrant], object: &str, column: Option<&str>, privilege: &str, of_operator| {
            let [object, privilege] = [object, privilege].map(str::to_owned);
            all.contains(&DocumentedGrant { object, column: column.map(str::to_owned), privilege, of_operator })
        };
        for (all, buckets) in [(&postgres, "tollgate.token_buckets"), (&mysql, "token_buckets")] {
            assert!(has(all, buckets, Some("refill_seconds"), "update", true), "{all:?}");
            assert!(has(all, buckets, None, "delete", true), "{all:?}");
            assert!(!all.iter().any(|one| one.column.as_deref() == Some("full_at")), "{all:?}");
        }
        assert!(has(&postgres, "tollgate", None, "usage", false));
        assert!(has(&postgres, "tollgate.create_bucket(text, bigint, numeric, text)", None, "execute", true));
        assert!(has(&postgres, "tollgate.token_overrides", None, "insert", true));
        assert!(has(&mysql, "token_take_v1", None, "execute", false));
        assert!(has(&mysql, "token_migrations", None, "select", false));
    }
}
