#[cfg(feature = "metrics")]
use metrics::Gauge;

/// A part of a gauge that several objects of the process add up to. What it says goes with it.
#[derive(Debug)]
pub(crate) struct Share {
    #[cfg(feature = "metrics")]
    name: &'static str,
    #[cfg(feature = "metrics")]
    gauge: Option<Gauge>,
    #[cfg(feature = "metrics")]
    said: usize,
}

#[cfg(feature = "metrics")]
impl Share {
    pub(crate) const fn of(name: &'static str) -> Self {
        Self { name, gauge: None, said: 0 }
    }

    /// Says how much it is now.
    #[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
    pub(crate) fn set(&mut self, amount: usize) {
        if amount == self.said {
            return;
        }
        let gauge = self.gauge.get_or_insert_with(|| metrics::gauge!(self.name));
        if amount > self.said {
            gauge.increment((amount - self.said) as f64);
        } else {
            gauge.decrement((self.said - amount) as f64);
        }
        self.said = amount;
    }
}

#[cfg(not(feature = "metrics"))]
impl Share {
    pub(crate) const fn of(_: &'static str) -> Self {
        Self {}
    }

    #[inline]
    pub(crate) fn set(&mut self, _: usize) {}
}

impl Share {
    /// One of those that the gauge counts, for as long as it lives.
    pub(crate) fn one(name: &'static str) -> Self {
        let mut share = Self::of(name);
        share.set(1);
        share
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.set(0);
    }
}
