//! The settings that a limiter and its clones share and can change at any time: the rule and the mode.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;

use crate::model::{Decision, Mode, ModeError, Rule, Source};

/// The current rule. Few limiters ever change their rule. Until then, reading it touches no reference count, which would cost a
/// tenth of a decision in memory.
#[derive(Debug)]
pub(super) struct CurrentRule {
    first: Rule,
    later: OnceLock<ArcSwap<Rule>>,
}

impl CurrentRule {
    pub(super) fn new(first: Rule) -> Self {
        Self { first, later: OnceLock::new() }
    }

    #[inline]
    pub(super) fn get(&self) -> Rule {
        self.later.get().map_or_else(|| self.first.clone(), |later| Rule::clone(&later.load()))
    }

    pub(super) fn set(&self, rule: Rule) {
        let rule = Arc::new(rule);
        self.later.get_or_init(|| ArcSwap::new(Arc::clone(&rule))).store(rule);
    }
}

/// The mode of the limiter itself, which needs no database.
#[derive(Debug)]
pub(super) struct CurrentMode(AtomicU8);

impl CurrentMode {
    pub(super) fn new(mode: Mode) -> Self {
        let current = Self(AtomicU8::new(0));
        current.set(mode);
        current
    }

    /// The mode in the environment. Default: enforce.
    pub(super) fn from_environment() -> Result<Mode, ModeError> {
        match std::env::var_os(VARIABLE) {
            // An empty variable counts as unset.
            None => Ok(Mode::Enforce),
            Some(text) if text.is_empty() => Ok(Mode::Enforce),
            Some(text) => text.to_string_lossy().parse(),
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

    /// The answer of a mode that needs no store.
    #[inline]
    pub(super) fn answer(mode: Mode) -> Option<Decision> {
        let decision = match mode {
            Mode::Enforce | Mode::Shadow => return None,
            Mode::Off => Decision::without_limit().with_mode(Mode::Off),
            Mode::Block => Decision::denial(None).with_mode(Mode::Block),
        };
        Some(decision.with_source(Source::Limiter))
    }

    /// Returns the store's answer. In shadow mode, a denial becomes a grant.
    #[inline]
    pub(super) fn apply_shadow(mode: Mode, decision: Decision) -> Decision {
        if !decision.is_granted() && mode == Mode::Shadow { decision.granted_by(Mode::Shadow) } else { decision }
    }
}

const MODES: [Mode; 4] = [Mode::Enforce, Mode::Shadow, Mode::Off, Mode::Block];

const VARIABLE: &str = "TOLLGATE_MODE";
