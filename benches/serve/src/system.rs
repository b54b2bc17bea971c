use std::fmt;

use clap::ValueEnum;

/// A system under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum System {
    /// `tollgate serve` over PostgreSQL.
    Tollgate,
    /// The same server, over a Unix socket.
    TollgateUnix,
    /// `tollgate serve --lease` over PostgreSQL.
    TollgateLease,
    /// `tollgate serve` over memory.
    TollgateMemory,
    /// A service over Redis that counts as envoyproxy/ratelimit does.
    StandIn,
    /// The limiter over PostgreSQL, without a server.
    InProcess,
}

impl System {
    pub(crate) const ALL: [Self; 6] =
        [Self::Tollgate, Self::TollgateUnix, Self::TollgateLease, Self::TollgateMemory, Self::StandIn, Self::InProcess];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tollgate => "tollgate",
            Self::TollgateUnix => "tollgate-unix",
            Self::TollgateLease => "tollgate-lease",
            Self::TollgateMemory => "tollgate-memory",
            Self::StandIn => "stand-in",
            Self::InProcess => "in-process",
        }
    }

    /// Returns the name of the server's threads, if it has threads of its own.
    pub(crate) fn threads(self) -> Option<&'static str> {
        match self {
            Self::TollgateUnix => Some(Self::Tollgate.name()),
            Self::InProcess => None,
            _ => Some(self.name()),
        }
    }
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
