//! Where the server listens: a TCP address, or the path of a socket.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// Where the server listens.
///
/// ```
/// use tollgate_serve::Address;
///
/// assert_eq!("127.0.0.1:8081".parse::<Address>()?.to_string(), "127.0.0.1:8081");
/// assert_eq!("unix:/run/tollgate.sock".parse::<Address>()?.to_string(), "unix:/run/tollgate.sock");
/// # Ok::<(), tollgate_serve::AddressError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// An address and a port.
    Tcp(SocketAddr),
    /// The path of a socket. Its owner and group can connect.
    Unix(PathBuf),
}

/// The text is not an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not an address: write 127.0.0.1:8081, [::1]:8081 or unix:/run/tollgate.sock")]
pub struct AddressError(String);

impl Address {
    /// Returns whether only programs of this host can connect.
    #[must_use]
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().to_canonical().is_loopback(),
            Self::Unix(_) => true,
        }
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        match text.strip_prefix("unix:") {
            Some("") => Err(AddressError(text.to_owned())),
            Some(path) => Ok(Self::Unix(path.into())),
            None => text.parse().map(Self::Tcp).map_err(|_| AddressError(text.to_owned())),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}
