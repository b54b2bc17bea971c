//! The instruments of the hot path, and gauges that several objects share.

#[cfg(feature = "metrics")]
use metrics::Gauge;

pub(crate) use chosen::DecisionTimer;
pub(super) use chosen::Instruments;

#[cfg(feature = "metrics")]
mod chosen {
    use std::sync::OnceLock;
    use std::time::{Duration, Instant};

    use metrics::{Counter, Histogram};
    use smol_str::SmolStr;

    use crate::model::{Decision, Mode, Source};
    use crate::telemetry::{DECISION_SECONDS, DECISIONS};

    /// A counter for each kind of decision, looked up at the first decision of the kind.
    #[derive(Debug)]
    pub(crate) struct Instruments {
        counters: [[[OnceLock<Counter>; MODES]; SOURCES]; 2],
        /// `None` for a store in this process, which answers as fast as a clock.
        seconds: Option<[OnceLock<Histogram>; SOURCES]>,
    }

    /// The start of a request, if it is timed.
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct DecisionTimer(Option<Instant>);

    impl DecisionTimer {
        /// For a request that this process answers as fast as a clock.
        #[inline]
        pub(crate) const fn untimed() -> Self {
            Self(None)
        }
    }

    impl Instruments {
        /// Creates the counters of the store's grants and denials at 0.
        pub(crate) fn new(limiter: &SmolStr, store: &'static str, in_process: bool) -> Self {
            let instruments = Self { counters: Default::default(), seconds: (!in_process).then(Default::default) };
            for decision in [Decision::denial(Duration::ZERO), Decision::grant(0)] {
                instruments.counter(&decision).get_or_init(|| counter_of(limiter, store, &decision));
            }
            instruments
        }

        #[inline]
        pub(crate) fn begin(&self) -> DecisionTimer {
            DecisionTimer(self.seconds.is_some().then(Instant::now))
        }

        #[inline]
        pub(crate) fn count(&self, limiter: &SmolStr, source: &'static str, begun: DecisionTimer, decision: &Decision) {
            self.counter(decision).get_or_init(|| counter_of(limiter, source, decision)).increment(1);
            if let (Some(seconds), DecisionTimer(Some(begun))) = (&self.seconds, begun) {
                seconds[place(decision.source())].get_or_init(|| histogram_of(limiter, source)).record(begun.elapsed());
            }
        }

        fn counter(&self, decision: &Decision) -> &OnceLock<Counter> {
            &self.counters[usize::from(decision.is_granted())][place(decision.source())][mode(decision.mode())]
        }
    }

    #[cold]
    fn counter_of(limiter: &SmolStr, source: &'static str, decision: &Decision) -> Counter {
        let (limiter, outcome, mode) = (limiter.to_string(), decision.outcome(), decision.mode().as_str());
        metrics::counter!(
            DECISIONS, "limiter" => limiter, "outcome" => outcome, "source" => source, "mode" => mode,
        )
    }

    #[cold]
    fn histogram_of(limiter: &SmolStr, source: &'static str) -> Histogram {
        metrics::histogram!(DECISION_SECONDS, "limiter" => limiter.to_string(), "source" => source)
    }

    fn place(source: Source) -> usize {
        match source {
            Source::Store => 0,
            Source::LocalReads => 1,
            Source::DenyCache => 2,
            Source::Lease => 3,
            Source::Fallback => 4,
            Source::Limiter => 5,
        }
    }

    fn mode(mode: Mode) -> usize {
        match mode {
            Mode::Enforce => 0,
            Mode::Shadow => 1,
            Mode::Off => 2,
            Mode::Block => 3,
        }
    }

    const SOURCES: usize = 6;
    const MODES: usize = 4;
}

#[cfg(not(feature = "metrics"))]
mod chosen {
    use smol_str::SmolStr;

    use crate::model::Decision;

    #[derive(Debug)]
    pub(crate) struct Instruments;

    #[derive(Clone, Copy, Debug)]
    pub(crate) struct DecisionTimer;

    impl DecisionTimer {
        #[inline]
        pub(crate) const fn untimed() -> Self {
            Self
        }
    }

    impl Instruments {
        pub(crate) fn new(_: &SmolStr, _: &'static str, _: bool) -> Self {
            Self
        }

        #[inline]
        pub(crate) fn begin(&self) -> DecisionTimer {
            DecisionTimer
        }

        #[inline]
        pub(crate) fn count(&self, _: &SmolStr, _: &'static str, _: DecisionTimer, _: &Decision) {}
    }
}

/// One object's part of a gauge to which several objects add. Dropping it removes the part.
#[derive(Debug)]
pub(crate) struct GaugeShare {
    #[cfg(feature = "metrics")]
    name: &'static str,
    #[cfg(feature = "metrics")]
    gauge: Option<Gauge>,
    #[cfg(feature = "metrics")]
    reported: usize,
}

#[cfg(feature = "metrics")]
impl GaugeShare {
    pub(crate) const fn of(name: &'static str) -> Self {
        Self { name, gauge: None, reported: 0 }
    }

    /// Sets the amount of this part.
    #[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
    pub(crate) fn set(&mut self, amount: usize) {
        if amount == self.reported {
            return;
        }
        let gauge = self.gauge.get_or_insert_with(|| metrics::gauge!(self.name));
        if amount > self.reported {
            gauge.increment((amount - self.reported) as f64);
        } else {
            gauge.decrement((self.reported - amount) as f64);
        }
        self.reported = amount;
    }
}

#[cfg(not(feature = "metrics"))]
impl GaugeShare {
    pub(crate) const fn of(_: &'static str) -> Self {
        Self {}
    }

    #[inline]
    pub(crate) fn set(&mut self, _: usize) {}
}

impl GaugeShare {
    /// A part of 1, until it is dropped.
    pub(crate) fn one(name: &'static str) -> Self {
        let mut share = Self::of(name);
        share.set(1);
        share
    }
}

impl Drop for GaugeShare {
    fn drop(&mut self) {
        self.set(0);
    }
}
