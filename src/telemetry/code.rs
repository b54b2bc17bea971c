use smol_str::SmolStr;

use crate::model::Error;

/// The code by which the database's manual has what lies beneath an error, if the database said anything. It names no key.
#[cfg(feature = "_sql")]
pub(super) fn code(error: &Error) -> Option<SmolStr> {
    use crate::store::sql::code_of;

    let mut beneath: Option<&(dyn std::error::Error + 'static)> = match error {
        Error::Contended { source: cause, .. }
        | Error::Database(cause)
        | Error::NotAsked { source: cause, .. }
        | Error::NotMigrated(cause)
        | Error::NotPermitted(cause)
        | Error::OutcomeUnknown(cause)
        | Error::ReadOnly(cause)
        | Error::Unavailable(cause) => Some(&**cause),
        _ => None,
    };
    while let Some(cause) = beneath {
        if let Some(sqlx::Error::Database(said)) = cause.downcast_ref() {
            return code_of(&**said);
        }
        if let Some(error) = cause.downcast_ref() {
            return code(error);
        }
        beneath = cause.source();
    }
    None
}

/// Other stores have no codes.
#[cfg(not(feature = "_sql"))]
pub(super) fn code(_: &Error) -> Option<SmolStr> {
    None
}
