//! Formats texts for a terminal or a shell: escaped, quoted, shortened or wrapped.

use std::fmt::{Display, Write as _};

use anstyle::{AnsiColor, Style};
use icu_properties::{CodePointSetData, props::DefaultIgnorableCodePoint};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

pub(crate) const GREEN: Style = Style::new().fg_color(Some(anstyle::Color::Ansi(AnsiColor::Green)));
pub(crate) const YELLOW: Style = Style::new().fg_color(Some(anstyle::Color::Ansi(AnsiColor::Yellow)));
pub(crate) const RED: Style = Style::new().fg_color(Some(anstyle::Color::Ansi(AnsiColor::Red)));

/// Escapes control characters in foreign text such as keys, so that the text cannot steer the terminal. The id of a further limit's
/// bucket becomes `user:42 limit=day`.
pub(crate) fn plain(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let (text, limit) = text.split_once('\u{1}').map_or((text, None), |(key, limit)| (key, Some(limit)));
    let limit = limit.into_iter().flat_map(|limit| LIMIT.chars().chain(limit.chars()));
    for c in text.chars().chain(limit) {
        if is_unseen(c) { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    shown
}

const LIMIT: &str = " limit=";

/// Characters that steer a terminal, reorder other characters or are invisible.
pub(crate) fn is_unseen(c: char) -> bool {
    // The default-ignorable code points include those that set the direction.
    c.is_control()
        || matches!(c, '\u{2028}' | '\u{2029}' | '\u{fff9}'..='\u{fffb}')
        || CodePointSetData::new::<DefaultIgnorableCodePoint>().contains(c)
}

/// A number with its noun: `1 row`, `2 rows`.
pub(crate) fn counted<N: Copy + Display + PartialEq + From<u8>>(number: N, one: &str) -> String {
    if number == N::from(1) { format!("1 {one}") } else { format!("{number} {one}s") }
}

/// Quotes a word for a shell.
pub(crate) fn quoted(word: &str) -> String {
    let safe = |c: char| c.is_ascii_alphanumeric() || "_-./:@%+=,".contains(c);
    if !word.is_empty() && word.chars().all(safe) {
        word.to_owned()
    } else if word.chars().any(is_unseen) {
        escaped(word)
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// As bash, zsh and ksh read text of which not all can be seen. Escapes bytes as three octal digits, so that a digit after them is text.
fn escaped(word: &str) -> String {
    let mut text = "$'".to_owned();
    for c in word.chars() {
        match c {
            '\n' => text.push_str(r"\n"),
            '\t' => text.push_str(r"\t"),
            '\'' | '\\' => text.extend(['\\', c]),
            c if is_unseen(c) => {
                for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                    let _ = write!(text, r"\{byte:03o}");
                }
            }
            c => text.push(c),
        }
    }
    text + "'"
}

/// Quotes the last argument of a command, so that a shell and clap do not read it as an option.
pub(crate) fn operand(word: &str) -> String {
    let dashes = if word.starts_with('-') { "-- " } else { "" };
    format!("{dashes}{}", quoted(word))
}

/// Shortens a text to a width. Cuts the middle, because the beginning and the end identify a key.
pub(crate) fn shortened(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let Some(shown) = width.checked_sub(1) else { return String::new() };
    let tail: Vec<char> = fitting(text.chars().rev(), shown / 2).collect();
    fitting(text.chars(), shown.div_ceil(2)).chain(['…']).chain(tail.into_iter().rev()).collect()
}

/// Shortens a text to a width. Cuts the end.
pub(crate) fn truncated(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    width.checked_sub(1).map_or_else(String::new, |shown| fitting(text.chars(), shown).chain(['…']).collect())
}

/// Yields the first characters that fit.
fn fitting(characters: impl Iterator<Item = char>, width: usize) -> impl Iterator<Item = char> {
    let mut used = 0;
    characters.take_while(move |character| {
        used += character.width().unwrap_or(0);
        used <= width
    })
}

/// Breaks a text between words if it does not fit behind `indent` columns, and indents the further lines. Keeps words whole,
/// because a shortened key would make another command. Keeps a command in backticks on one line if it fits.
pub(crate) fn wrapped(text: &str, width: Option<usize>, indent: usize) -> String {
    let Some(free) = width.and_then(|width| width.checked_sub(indent)).filter(|free| *free >= MIN_TEXT_WIDTH) else {
        return text.to_owned();
    };
    let length = |word: &str| anstream::adapter::strip_str(word).to_string().width();
    let (mut lines, mut used) = (String::new(), 0);
    for part in parts(text) {
        let is_whole = length(&part) <= free;
        for word in if is_whole { vec![&*part] } else { part.split(' ').collect() } {
            let length = length(word);
            if used > 0 && used + 1 + length > free {
                lines.push('\n');
                lines.extend(std::iter::repeat_n(' ', indent));
                used = 0;
            } else if used > 0 {
                lines.push(' ');
                used += 1;
            }
            lines += word;
            used += length;
        }
    }
    lines
}

/// The words of a text. A command in backticks counts as one word.
fn parts(text: &str) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match parts.last_mut().filter(|part| !part.matches('`').count().is_multiple_of(2)) {
            Some(part) => {
                part.push(' ');
                part.push_str(word);
            }
            None => parts.push(word.to_owned()),
        }
    }
    parts
}

/// A narrower column of text is harder to read than lines that the terminal breaks.
const MIN_TEXT_WIDTH: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invisible_characters_are_escaped() {
        let unseen = "\u{7}\u{85}\u{ad}\u{34f}\u{61c}\u{115f}\u{17b4}\u{180e}\u{200b}\u{2028}\u{202e}\u{2065}\u{3164}\u{fe0f}\
                      \u{feff}\u{ffa0}\u{fff9}\u{1d173}\u{e0041}\u{e0100}";
        for c in unseen.chars() {
            let key = format!("a{c}1");
            assert_eq!(plain(&key), format!("a\\u{{{:x}}}1", u32::from(c)));
            assert!(quoted(&key).is_ascii(), "{key:?}");
        }
        for text in ["user:42 é", "東京", "עברית", "🔑"] {
            assert_eq!(plain(text), text);
        }
    }

    #[test]
    fn text_wraps_between_words_behind_its_indent() {
        let text = format!("would be {RED}denied{RED:#}: a token comes in 1d 2h");
        let broken = |width, indent| wrapped(&text, width, indent);
        assert_eq!(broken(None, 4), text);
        assert_eq!(broken(Some(80), 4), text);
        assert_eq!(broken(Some(23), 4), text, "too narrow");
        let lines = anstream::adapter::strip_str(&broken(Some(24), 4)).to_string();
        assert_eq!(lines, "would be denied: a\n    token comes in 1d 2h");
        let command = "make it again: `tollgate plan set` now";
        assert_eq!(wrapped(command, Some(25), 2), "make it again:\n  `tollgate plan set` now");
        let long = "again: `tollgate plan set --quota 10/s`";
        assert_eq!(wrapped(long, Some(25), 2), "again: `tollgate plan\n  set --quota 10/s`");
    }

    #[test]
    fn long_text_is_cut_in_the_middle_or_at_the_end() {
        for (text, width, middle, end) in [
            ("tenant:7:user:42", 16, "tenant:7:user:42", "tenant:7:user:42"),
            ("tenant:7:user:42", 9, "tena…r:42", "tenant:7…"),
            ("tenant:7:user:42", 8, "tena…:42", "tenant:…"),
            ("tenant:7", 2, "t…", "t…"),
            ("tenant:7", 1, "…", "…"),
            ("tenant:7", 0, "", ""),
            // Each character takes two columns.
            ("東京東京東京", 8, "東京…京", "東京東…"),
        ] {
            assert_eq!((shortened(text, width), truncated(text, width)), (middle.to_owned(), end.to_owned()));
        }
    }
}
