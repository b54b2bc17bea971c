//! The parameters of a URL: the driver logs those that it does not know, with their values.

/// The URL without the parameters that the driver does not know, and how many those are.
pub(super) fn without_unknown(url: &str) -> (String, usize) {
    let Some((address, query)) = url.split_once('?') else { return (url.to_owned(), 0) };
    let (known, unknown): (Vec<_>, Vec<_>) = query.split('&').filter(|pair| !pair.is_empty()).partition(|pair| {
        let name = pair.split_once('=').map_or(*pair, |(name, _)| name);
        // Only brackets may well be encoded.
        KNOWN.contains(&name) || ["options[", "options%5B", "options%5b"].iter().any(|start| name.starts_with(start))
    });
    (format!("{address}?{}", known.join("&")), unknown.len())
}

/// What sqlx 0.9 knows, which are all names that need no encoding.
const KNOWN: [&str; 18] = [
    "application_name",
    "dbname",
    "host",
    "hostaddr",
    "options",
    "password",
    "port",
    "ssl-ca",
    "ssl-cert",
    "ssl-key",
    "ssl-mode",
    "ssl-root-cert",
    "sslcert",
    "sslkey",
    "sslmode",
    "sslrootcert",
    "statement-cache-capacity",
    "user",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_parameters_are_kept_as_they_are() {
        let known: Vec<_> = KNOWN.iter().map(|name| format!("{name}=x%26y")).collect();
        for query in [known.join("&"), "options[a]=1&options%5Bb%5D=2".to_owned(), String::new()] {
            let url = format!("postgres://app:a%3Fb@db/app?{query}");
            assert_eq!(without_unknown(&url), (url.clone(), 0));
        }
        let (url, unknown) = without_unknown("postgres://db/app?a=1&sslmode=require&SSLMODE=x&b&pass%77ord=x");
        assert_eq!((url.as_str(), unknown), ("postgres://db/app?sslmode=require", 4));
        assert_eq!(without_unknown("postgres://db/app"), ("postgres://db/app".to_owned(), 0));
    }
}
