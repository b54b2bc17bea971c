//! Parses the lists that proxies append to. Reads them from the right, so that entries of a client, at the left, cannot
//! change how later entries are read.

use std::borrow::Cow;

use http::HeaderMap;
use http::header::HeaderName;

/// Iterates over the elements of all lines of a header, the last one first. An element that is not UTF-8 is `None`.
pub(super) fn from_right<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = Option<&'a str>> {
    let lines = headers.get_all(name).into_iter().rev();
    lines.flat_map(|line| FromRight(Some(line.as_bytes()))).map(|element| std::str::from_utf8(element).ok())
}

/// Iterates over the elements of a line, without empty ones.
struct FromRight<'a>(Option<&'a [u8]>);

impl<'a> Iterator for FromRight<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        loop {
            let rest = self.0?;
            let comma = last_comma(rest);
            self.0 = comma.map(|comma| &rest[..comma]);
            let element = rest[comma.map_or(0, |comma| comma + 1)..].trim_ascii();
            if !element.is_empty() {
                return Some(element);
            }
        }
    }
}

/// Finds the last comma outside quoted strings. Reads from the right, so that a quote in an earlier element cannot
/// change where the last element begins.
fn last_comma(line: &[u8]) -> Option<usize> {
    let mut quoted = false;
    for (at, byte) in line.iter().enumerate().rev() {
        match byte {
            b'"' if !(quoted && is_escaped(&line[..at])) => quoted = !quoted,
            b',' if !quoted => return Some(at),
            _ => {}
        }
    }
    None
}

fn is_escaped(before: &[u8]) -> bool {
    before.iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 1
}

/// Returns the `for` parameter of a `Forwarded` element (RFC 7239).
pub(super) fn forwarded_for(element: &str) -> Option<Cow<'_, str>> {
    let mut rest = element;
    loop {
        let (name, after) = rest.split_once('=')?;
        let (value, behind) = value(after)?;
        if name.trim().eq_ignore_ascii_case("for") {
            return Some(value);
        }
        rest = behind.trim_start().strip_prefix(';')?;
    }
}

/// Splits off a token or a quoted string, and returns the rest.
fn value(text: &str) -> Option<(Cow<'_, str>, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find(';').unwrap_or(text.len());
        return Some((text[..end].trim_end().into(), &text[end..]));
    };
    let mut value = String::new();
    let mut chars = quoted.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return Some((value.into(), &quoted[at + 1..])),
            '\\' => value.push(chars.next()?.1),
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn elements(lines: &[&'static str]) -> Vec<String> {
        let name = HeaderName::from_static("forwarded");
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(&name, HeaderValue::from_static(line));
        }
        from_right(&headers, &name).map(|element| element.unwrap().to_owned()).collect()
    }

    #[test]
    fn elements_come_from_the_right_over_all_lines() {
        assert_eq!(elements(&["a, b,c", "d"]), ["d", "c", "b", "a"]);
        assert_eq!(elements(&["", " , ,a,,", ","]), ["a"]);
        assert_eq!(elements(&[r#"a, for="b, \"c\\\", d";by=e"#]), [r#"for="b, \"c\\\", d";by=e"#, "a"]);
    }

    #[test]
    fn unclosed_quote_hides_nothing_after_it() {
        for evil in [r#"for="x"#, r#"""#, r#"for="a\"#, r#"for=1.1.1.1;by=""#, "\"\\", r#"\"""#] {
            let line = format!("{evil}, for=\"[2001:db8::7]\";by=_proxy");
            let mut headers = HeaderMap::new();
            headers.append("forwarded", HeaderValue::from_str(&line).unwrap());
            let last = from_right(&headers, &HeaderName::from_static("forwarded")).next().flatten();
            assert_eq!(last, Some(r#"for="[2001:db8::7]";by=_proxy"#), "{line}");
        }
    }

    #[test]
    fn element_address_is_parsed_by_rfc_7239() {
        for (element, value) in [
            ("for=192.0.2.60;proto=http;by=203.0.113.43", Some("192.0.2.60")),
            (r#"proto=https;For="[2001:db8:cafe::17]:4711""#, Some("[2001:db8:cafe::17]:4711")),
            (r#"by="a;for=b\"" ; for=unknown"#, Some("unknown")),
            (r#"for="_gaz\e""#, Some("_gaze")),
            ("FOR = 192.0.2.43", Some(" 192.0.2.43")),
            ("proto=https", None),
            (r#"for="192.0.2.43"#, None),
            (r#"by="x" for=192.0.2.43"#, None),
            (r#"for="\"#, None),
            ("192.0.2.43", None),
            ("", None),
        ] {
            assert_eq!(forwarded_for(element).as_deref(), value, "{element}");
        }
    }
}
