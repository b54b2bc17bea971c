use std::sync::atomic::{AtomicU8, Ordering};

use crate::model::{Decision, Mode, ModeError, Source};

/// The mode of a limiter itself: a switch that needs no database.
#[derive(Debug)]
pub(super) struct Switched(AtomicU8);

impl Switched {
    pub(super) fn new(mode: Mode) -> Self {
        let switched = Self(AtomicU8::new(0));
        switched.set(mode);
        switched
    }

    /// What the environment says.
    pub(super) fn from_environment() -> Result<Mode, ModeError> {
        match std::env::var_os(VARIABLE) {
            // Emptied it is as good as taken away.
            None => Ok(Mode::Enforce),
            Some(word) if word.is_empty() => Ok(Mode::Enforce),
            Some(word) => word.to_string_lossy().parse(),
        }
    }

    #[inline]
    pub(super) fn get(&self) -> Mode {
        MODES[usize::from(self.0.load(Ordering::Relaxed)) % MODES.len()]
    }

    pub(super) fn set(&self, mode: Mode) {
        let place = MODES.iter().position(|&other| other == mode).unwrap_or(0);
        self.0.store(u8::try_from(place).unwrap_or(0), Ordering::Relaxed);
    }

    /// The answer that needs no store, if the mode has one.
    #[inline]
    pub(super) fn answer(mode: Mode) -> Option<Decision> {
        let decision = match mode {
            Mode::Enforce | Mode::Shadow => return None,
            Mode::Off => Decision::grant(u64::MAX).under(Mode::Off),
            Mode::Block => Decision::denial(std::time::Duration::MAX).under(Mode::Block),
        };
        Some(decision.by(Source::Limiter))
    }

    /// The store's answer, or in shadow a grant instead of its denial.
    #[inline]
    pub(super) fn see(mode: Mode, decision: Decision) -> Decision {
        if !decision.is_granted() && mode == Mode::Shadow { decision.pass(Mode::Shadow) } else { decision }
    }
}

const MODES: [Mode; 4] = [Mode::Enforce, Mode::Shadow, Mode::Off, Mode::Block];

const VARIABLE: &str = "TOLLGATE_MODE";
