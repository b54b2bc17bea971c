//! The messages of Envoy's rate limit service, its client and its server, which the build generates.

#![allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    clippy::all,
    clippy::pedantic,
    clippy::use_self,
    clippy::or_fun_call
)]

macro_rules! package {
    ($name:literal) => {
        include!(concat!(env!("OUT_DIR"), "/", $name, ".rs"));
    };
}

pub mod envoy {
    pub mod config {
        pub mod core {
            pub mod v3 {
                package!("envoy.config.core.v3");
            }
        }
    }
    pub mod extensions {
        pub mod common {
            pub mod ratelimit {
                pub mod v3 {
                    package!("envoy.extensions.common.ratelimit.v3");
                }
            }
        }
    }
    pub mod service {
        pub mod ratelimit {
            pub mod v3 {
                package!("envoy.service.ratelimit.v3");
            }
        }
    }
    pub mod r#type {
        pub mod v3 {
            package!("envoy.r#type.v3");
        }
    }
}
