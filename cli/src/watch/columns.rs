//! What fits beside the keys.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::board::HISTORY;

/// The columns of a screen, from left to right, with one place between each two.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ScreenColumns {
    /// How wide the keys' is.
    pub(super) key: usize,
    pub(super) figures: Vec<Figure>,
    /// How wide the sparklines' is; 0: there is none.
    pub(super) lately: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Figure {
    Quota,
    Tokens,
    Granted,
    DeniedRate,
    Denied,
}

impl ScreenColumns {
    /// The keys have what the longest needs as far as the figures leave it, and the sparklines what is left then. Where not
    /// even the beginning of a key would fit beside all figures, those go that say least of a bucket.
    pub(super) fn within(width: usize, longest: usize) -> Self {
        let mut figures = ALL.to_vec();
        for gone in DROP_ORDER {
            if width >= MIN_KEY_WIDTH + taken(&figures) {
                break;
            }
            figures.retain(|figure| *figure != gone);
        }
        let free = width.saturating_sub(taken(&figures));
        let lately = Some(free.saturating_sub(longest.max(MIN_KEY_WIDTH) + 1).min(HISTORY));
        let lately = lately.filter(|places| *places >= HISTORY_TITLE.len()).unwrap_or(0);
        let key = if lately > 0 { free - lately - 1 } else { free };
        Self { key, figures, lately }
    }

    pub(super) fn widths(&self) -> impl Iterator<Item = usize> {
        let lately = Some(self.lately).filter(|width| *width > 0);
        std::iter::once(self.key).chain(self.figures.iter().map(|figure| figure.width())).chain(lately)
    }

    pub(super) fn titles(&self) -> impl Iterator<Item = &'static str> {
        let lately = (self.lately > 0).then_some(HISTORY_TITLE);
        std::iter::once("bucket").chain(self.figures.iter().map(|figure| figure.title())).chain(lately)
    }
}

impl Figure {
    fn title(self) -> &'static str {
        match self {
            Self::Quota => "quota",
            Self::Tokens => "tokens",
            Self::Granted => "granted/s",
            Self::DeniedRate => "denied/s",
            Self::Denied => "denied",
        }
    }

    fn width(self) -> usize {
        match self {
            Self::Quota => 18,
            Self::Tokens => 11,
            Self::Granted => 9,
            Self::DeniedRate | Self::Denied => 8,
        }
    }
}

/// The places of the figures, and those before them.
fn taken(figures: &[Figure]) -> usize {
    figures.iter().map(|figure| figure.width() + 1).sum()
}

/// A text that is no wider than this: keys are told apart by how they begin and end, so the middle goes.
pub(super) fn shortened(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let Some(shown) = width.checked_sub(1) else { return String::new() };
    let head = fitting(text.chars(), shown.div_ceil(2));
    let tail = fitting(text.chars().rev(), shown / 2);
    let (head, tail): (String, Vec<char>) = (head.collect(), tail.collect());
    format!("{head}…{}", tail.into_iter().rev().collect::<String>())
}

/// The first characters that have room.
fn fitting(characters: impl Iterator<Item = char>, width: usize) -> impl Iterator<Item = char> {
    let mut used = 0;
    characters.take_while(move |character| {
        used += character.width().unwrap_or(0);
        used <= width
    })
}

const ALL: [Figure; 5] = [Figure::Quota, Figure::Tokens, Figure::Granted, Figure::DeniedRate, Figure::Denied];

/// In which order. The tokens go last: without them a key says nothing.
const DROP_ORDER: [Figure; 5] = [Figure::Denied, Figure::DeniedRate, Figure::Quota, Figure::Granted, Figure::Tokens];

const HISTORY_TITLE: &str = "lately";

/// Less of a key tells nobody which it is.
const MIN_KEY_WIDTH: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_get_width_before_sparklines() {
        for (width, longest, key, figures, lately) in [
            (200, 20, 110, 5, 30),
            (120, 16, 30, 5, 30),
            (120, 50, 50, 5, 10),
            (120, 55, 61, 5, 0),
            (120, 60, 61, 5, 0),
            (120, 255, 61, 5, 0),
            (80, 40, 21, 5, 0),
            (74, 40, 24, 4, 0),
            (60, 40, 19, 3, 0),
            (40, 40, 18, 2, 0),
            (36, 40, 24, 1, 0),
            (20, 40, 20, 0, 0),
            (0, 40, 0, 0, 0),
        ] {
            let columns = ScreenColumns::within(width, longest);
            assert_eq!(
                (columns.key, columns.figures.len(), columns.lately),
                (key, figures, lately),
                "{width} {longest}"
            );
            let (all, count) = (columns.widths().sum::<usize>(), columns.widths().count());
            assert!(all + count - 1 <= width || width == 0, "{columns:?} within {width}");
            assert_eq!(columns.titles().count(), count);
        }
    }

    #[test]
    fn long_text_is_truncated_in_the_middle() {
        for (text, width, shown) in [
            ("tenant:7:user:42", 16, "tenant:7:user:42"),
            ("tenant:7:user:42", 9, "tena…r:42"),
            ("tenant:7:user:42", 8, "tena…:42"),
            ("tenant:7", 2, "t…"),
            ("tenant:7", 1, "…"),
            ("tenant:7", 0, ""),
            // Each takes two places.
            ("東京東京東京", 8, "東京…京"),
        ] {
            let cut = shortened(text, width);
            assert_eq!(cut, shown);
            assert!(cut.width() <= width, "{cut}");
        }
    }
}
