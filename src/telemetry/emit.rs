//! Macros that are those of `metrics` and `tracing`, or nothing.

/// Adds to a counter.
#[cfg(feature = "metrics")]
macro_rules! count {
    ($name:expr, $by:expr $(, $label:literal => $value:expr)* $(,)?) => {
        ::metrics::counter!($name $(, $label => $value)*).increment($by)
    };
}
#[cfg(not(feature = "metrics"))]
macro_rules! count {
    ($name:expr, $by:expr $(, $label:literal => $value:expr)* $(,)?) => {{
        let _ = (&$name, &$by $(, &$value)*);
    }};
}

/// Adds a value to a histogram.
#[cfg(feature = "metrics")]
macro_rules! record {
    ($name:expr, $value:expr $(, $label:literal => $text:expr)* $(,)?) => {
        ::metrics::histogram!($name $(, $label => $text)*).record($value)
    };
}
#[cfg(not(feature = "metrics"))]
macro_rules! record {
    ($name:expr, $value:expr $(, $label:literal => $text:expr)* $(,)?) => {{
        let _ = (&$name, &$value $(, &$text)*);
    }};
}

/// Tells what happened: a level, what goes with it, and a text.
#[cfg(feature = "tracing")]
macro_rules! event {
    ($level:ident, $($field:ident = $value:expr,)* $text:literal) => {
        ::tracing::event!(target: "tollgate", ::tracing::Level::$level, $($field = $value,)* $text)
    };
}
#[cfg(not(feature = "tracing"))]
macro_rules! event {
    ($level:ident, $($field:ident = $value:expr,)* $text:literal) => {{
        let _ = ($(&$value,)*);
    }};
}

pub(super) use {count, event, record};
