/// How often each key is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Popularity {
    Uniform,
    /// The n-th most popular key, in proportion to 1 / n^1.1.
    Zipf,
    One,
    /// Every other time the first key, otherwise any.
    HalfOne,
    /// Each key once, in random order.
    Each,
}

impl Popularity {
    /// Draws the sequence of keys, before the measurement and from a fixed seed. Every peer gets the same sequence.
    pub(crate) fn draw(self, keys: u32, seed: u64) -> Vec<u32> {
        let mut random = fastrand::Rng::with_seed(seed);
        match self {
            Self::One => vec![0; 1024],
            Self::Uniform => (0..DRAWN).map(|_| random.u32(0..keys)).collect(),
            Self::Each => {
                let mut order: Vec<u32> = (0..keys).collect();
                random.shuffle(&mut order);
                order
            }
            Self::HalfOne => (0..DRAWN).map(|nth| if nth % 2 == 0 { 0 } else { random.u32(0..keys) }).collect(),
            Self::Zipf => {
                let mut sum = 0.0;
                let up_to = (1..=keys).map(|rank| {
                    sum += f64::from(rank).powf(-EXPONENT);
                    sum
                });
                let up_to: Vec<f64> = up_to.collect();
                // Neighbours in rank are not neighbours in the table.
                let mut order: Vec<u32> = (0..keys).collect();
                random.shuffle(&mut order);
                let rank = |at: f64| up_to.partition_point(|&upper| upper < at).min(order.len() - 1);
                (0..DRAWN).map(|_| order[rank(random.f64() * sum)]).collect()
            }
        }
    }
}

const DRAWN: usize = 1 << 20;
const EXPONENT: f64 = 1.1;
