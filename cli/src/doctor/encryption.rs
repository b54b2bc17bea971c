//! Whether the way to a remote server is encrypted.

use std::net::IpAddr;

use super::report::DoctorReport;

/// The TLS mode of the URL.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Tls {
    /// None, even if the server offers it.
    Off,
    /// If the server offers it.
    Offered,
    /// Always, whatever name the server's certificate has.
    Required,
    /// Always, and the certificate is verified.
    Verified,
}

/// Reports the way to `host`. `encrypted` is what the server says of this session; a pooler's server speaks of the
/// pooler's way to it, so the URL decides where it can.
pub(super) fn examine(host: &str, is_socket: bool, tls: Tls, encrypted: bool, verify: &str, report: &mut DoctorReport) {
    if is_socket || is_loopback(host) {
        return report.ok("encryption", "not needed: the server, or the pooler before it, is reached within this host");
    }
    match tls {
        Tls::Verified => report.ok("encryption", "TLS, and the server's certificate is verified"),
        Tls::Required => {
            let found =
                format!("TLS, but nothing verifies that the certificate is of {host}: another server could answer");
            report.warn("encryption", found, verify);
        }
        Tls::Offered if encrypted => {
            let found = format!("TLS while {host} offers it: an attacker on the way can remove it");
            report.warn("encryption", found, verify);
        }
        Tls::Offered | Tls::Off => {
            let found =
                format!("no TLS to {host}: an attacker on the way can read the password and answer \"granted\"");
            report.warn("encryption", found, verify);
        }
    }
}

fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address: IpAddr| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remote_connection_without_verified_tls_is_a_warning() {
        for (host, tls, encrypted, warned) in [
            ("db.example.com", Tls::Off, false, &["encryption"][..]),
            // A pooler's way to its server is encrypted, and the way to the pooler is not.
            ("db.example.com", Tls::Off, true, &["encryption"]),
            ("db.example.com", Tls::Offered, false, &["encryption"]),
            ("db.example.com", Tls::Offered, true, &["encryption"]),
            ("10.0.0.7", Tls::Required, true, &["encryption"]),
            ("10.0.0.7", Tls::Verified, true, &[]),
            ("127.0.0.1", Tls::Off, false, &[]),
            ("::1", Tls::Off, false, &[]),
            ("[::1]", Tls::Off, false, &[]),
            ("localhost", Tls::Off, false, &[]),
        ] {
            let mut report = DoctorReport::default();
            examine(host, false, tls, encrypted, "sslmode=verify-full", &mut report);
            assert_eq!(report.warnings(), warned, "{host}: {}", report.found("encryption"));
        }
        let mut report = DoctorReport::default();
        examine("", true, Tls::Off, false, "", &mut report);
        assert!(report.warnings().is_empty());
    }
}
