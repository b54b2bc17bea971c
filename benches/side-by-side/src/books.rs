use anyhow::ensure;

/// The tokens that callers requested, to compare with those that the store debited. If buckets are never empty, a
/// window check finds nothing.
///
/// tollgate's tables record the debited tokens. Redis's script stores when a bucket is full again, which gives the same
/// number.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Books {
    /// Tokens that callers were granted.
    pub(crate) granted: u64,
    /// Tokens of requests that failed. The store can have debited them or not.
    pub(crate) unknown: u64,
    /// Whether the store debits tokens for later requests.
    pub(crate) ahead: bool,
}

impl Books {
    /// Fails if the store debited fewer tokens than callers were granted, or more than they can have.
    pub(crate) fn check(self, debited: i64) -> anyhow::Result<()> {
        let Self { granted, unknown, ahead } = self;
        ensure!(
            i128::from(debited) >= i128::from(granted),
            "the books do not balance: {granted} tokens were granted, and the store has debited only {debited}"
        );
        ensure!(
            ahead || i128::from(debited) <= i128::from(granted) + i128::from(unknown),
            "the books do not balance: the store has debited {debited} tokens, of which {granted} were granted and \
             {unknown} perhaps"
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grant_without_debit_is_a_fault() {
        let books = Books { granted: 10, unknown: 5, ahead: false };
        assert!(books.check(10).is_ok());
        assert!(books.check(9).unwrap_err().to_string().contains("debited only 9"));
        assert!(Books { ahead: true, ..books }.check(9).is_err(), "a lease debits first");
        assert!(books.check(-1).is_err(), "a bucket is gone");
    }

    #[test]
    fn debit_without_grant_is_a_fault() {
        let books = Books { granted: 10, unknown: 5, ahead: false };
        assert!(books.check(15).is_ok());
        assert!(books.check(16).unwrap_err().to_string().contains("5 perhaps"));
        assert!(Books { ahead: true, ..books }.check(16).is_ok(), "the lease has the others");
    }
}
