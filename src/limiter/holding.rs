//! What somebody else says of a limit, passed on to the store.

use std::pin::pin;

use super::Limiter;
use super::switched::Switched;
use crate::model::{Error, HoldBack, HoldBackError, Key, Quota, Rule};
use crate::store::Store;

impl<S: Store> Limiter<S> {
    /// Holds a bucket back under a rule, or else the limiter's own; and while the store does not answer, under the quota that the
    /// limit has in this process, if that is said.
    pub(super) async fn hold_back_under(
        &self,
        key: &Key,
        rule: Option<&Rule>,
        local: Option<&Quota>,
        mut hold: HoldBack,
    ) -> Result<bool, Error> {
        let of_limiter = self.rule();
        let (rule, own) = (rule.unwrap_or(&of_limiter), rule.is_none_or(|rule| *rule == of_limiter && local.is_none()));
        if Switched::answer(self.mode()).is_some() {
            return Ok(false);
        }
        let lowering = async {
            let lowered = self.stack.hold_back(key, rule, hold).await;
            // For a time it cannot be, but to what is left.
            let (Err(Error::HoldBack(HoldBackError::NeverRefills(_))), Some(left)) = (&lowered, hold.left()) else {
                return lowered;
            };
            hold = HoldBack::remaining(left);
            self.stack.hold_back(key, rule, hold).await
        };
        let lowered = self.policy.in_time(pin!(lowering)).await;
        self.decisions.held(key, hold, lowered.as_ref().copied());
        if let Some(instead) = lowered.as_ref().err().and_then(|error| self.policy.instead_of(error)) {
            instead.hold_back(key, rule, own, local, hold);
        }
        lowered
    }
}
