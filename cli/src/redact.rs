//! Removes passwords from text before it is shown.

/// The text without the users and passwords of the URLs in it.
pub(crate) fn redact(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + "://".len());
        shown += before;
        let end = after.find(|c: char| c.is_whitespace() || "'\"`".contains(c)).unwrap_or(after.len());
        let (url, behind) = after.split_at(end);
        // Splits at the last `@`, because a password that is not percent-encoded may contain others.
        let public = url.rfind('@').map_or(url, |at| {
            shown += "***";
            &url[at..]
        });
        shown += &without_parameter(public);
        rest = behind;
    }
    shown + rest
}

/// The URL of a database without its user, password and parameters: enough to tell databases apart.
pub(crate) fn database(url: &str) -> String {
    let url = redact(url).replace("***@", "");
    url.split('?').next().unwrap_or_default().to_owned()
}

/// PostgreSQL's driver takes the password as a parameter as well.
fn without_parameter(url: &str) -> String {
    let Some(at) = url.find("password=") else { return url.to_owned() };
    let (before, after) = url.split_at(at + "password=".len());
    format!("{before}***{}", after.find('&').map_or("", |end| &after[end..]))
}

#[cfg(test)]
mod tests {
    use super::{database, redact};

    #[test]
    fn database_name_has_no_user_and_no_parameters() {
        for (url, shown) in [
            ("postgres://app:se@cr?et@db:5432/app?sslmode=require&password=secret", "postgres://db:5432/app"),
            ("sqlite:app.db", "sqlite:app.db"),
        ] {
            assert_eq!(database(url), shown);
        }
    }

    #[test]
    fn password_in_url_is_removed() {
        for (text, shown) in [
            ("postgres://app:secret@db:5432/app", "postgres://***@db:5432/app"),
            ("no 'mysql://app:se@cr:et@db/app' here", "no 'mysql://***@db/app' here"),
            ("postgres://db/app?user=a&password=secret&x=1", "postgres://db/app?user=a&password=***&x=1"),
            ("a://x:y@b and c://x:y@d", "a://***@b and c://***@d"),
            ("sqlite://app.db", "sqlite://app.db"),
        ] {
            assert_eq!(redact(text), shown);
        }
    }
}
