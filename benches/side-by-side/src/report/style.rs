use plotters::style::RGBColor;

/// Returns the colour of a system under test, which is the same in every chart. tollgate's colours stand out.
pub(crate) fn color(system: &str) -> RGBColor {
    let (name, server) = system.split_once('@').unwrap_or((system, ""));
    match (name, server) {
        ("tollgate" | "tollgate-leased", "postgres") => RGBColor(0x1f, 0x6f, 0xb4),
        ("tollgate" | "tollgate-leased", "mysql") => RGBColor(0x3f, 0x9f, 0xd4),
        ("tollgate" | "tollgate-leased", "mariadb") => RGBColor(0x2a, 0x9d, 0x8f),
        ("tollgate" | "tollgate-leased", _) => RGBColor(0x6a, 0x7f, 0xdb),
        ("tollgate-memory", _) => RGBColor(0x14, 0x3d, 0x66),
        ("redis", _) => RGBColor(0xc6, 0x30, 0x2b),
        ("redis-pipelined", _) => RGBColor(0xe5, 0x8f, 0x8b),
        ("redis-cell", _) => RGBColor(0xd9, 0x6c, 0x2f),
        ("no-limiter", _) => RGBColor(0x33, 0x33, 0x33),
        ("governor", _) => RGBColor(0x8a, 0x6d, 0x3b),
        ("rate-limiter-flexible", _) => RGBColor(0x7a, 0x9a, 0x3a),
        _ => PLAIN,
    }
}

/// Whether the system is included only for comparison.
pub(crate) fn is_plain(system: &str) -> bool {
    color(system) == PLAIN
}

const PLAIN: RGBColor = RGBColor(0x99, 0x99, 0x99);

pub(crate) const FONT: &str = "sans-serif";
pub(crate) const PALE: RGBColor = RGBColor(0xe4, 0xe4, 0xe4);
pub(crate) const GREY: RGBColor = RGBColor(0x55, 0x55, 0x55);
