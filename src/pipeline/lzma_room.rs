//! A limit on the workers that use LZMA at the same time. LZMA takes too much memory to reserve
//! for each worker, so the pool lends it for one chunk at a time. Slow links leave most of the
//! pool unused.

use parking_lot::Condvar;

use crate::chunk::Pool;
use crate::chunk::pool::Lent;
use crate::locks::{OrderedMutex, place};

pub struct LzmaRoom {
    /// The most workers at the same time.
    most: usize,
    /// Buffers of the pool that one worker borrows.
    slots: usize,
    at_work: OrderedMutex<usize, { place::LZMA_ROOM }>,
    left: Condvar,
}

/// Permission to use LZMA, until it is dropped.
pub struct Inside<'a> {
    room: &'a LzmaRoom,
    memory: Option<Lent>,
}

impl LzmaRoom {
    pub fn new(most: usize, slots: usize) -> LzmaRoom {
        LzmaRoom {
            most,
            slots,
            at_work: OrderedMutex::new(0),
            left: Condvar::new(),
        }
    }

    /// Waits while the limit is reached. Each worker inside leaves after one chunk. None if the
    /// pool has too little free memory; the caller then uses another method.
    pub fn enter(&self, pool: &Pool) -> Option<Inside<'_>> {
        if self.most == 0 {
            return None;
        }
        let mut at_work = self.at_work.lock();
        while *at_work >= self.most {
            at_work.wait(&self.left);
        }
        let Some(memory) = pool.lend(self.slots) else {
            // A worker that leaves wakes one waiting worker. This one does not stay, so it wakes
            // the next.
            self.left.notify_one();
            return None;
        };
        *at_work += 1;
        Some(Inside {
            room: self,
            memory: Some(memory),
        })
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        // Before the next one looks for it.
        drop(self.memory.take());
        *self.room.at_work.lock() -= 1;
        self.room.left.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn memory_is_the_pools_and_comes_back() {
        let pool = Pool::new(8, 1 << 10);
        let room = LzmaRoom::new(4, 3);
        let used = pool.take_blocking().expect("open");
        let first = room.enter(&pool).expect("7 are free");
        let second = room.enter(&pool).expect("4 are free");
        assert_eq!(pool.free(), 1);
        assert!(room.enter(&pool).is_none(), "1 is free");
        assert_eq!(pool.free(), 1, "the one buffer is back");
        drop((first, second, used));
        assert_eq!(pool.free(), 8);
        assert!(LzmaRoom::new(0, 3).enter(&pool).is_none());
    }

    #[test]
    fn one_more_than_may_waits_for_another_to_leave() {
        let pool = Pool::new(8, 1 << 10);
        let room = LzmaRoom::new(1, 2);
        let inside = room.enter(&pool).expect("nobody is inside");
        std::thread::scope(|scope| {
            let (tell, told) = mpsc::channel();
            let (room, pool) = (&room, &pool);
            scope.spawn(move || {
                tell.send("waits").expect("heard");
                let entered = room.enter(pool).is_some();
                tell.send(if entered { "entered" } else { "left" })
                    .expect("heard");
            });
            assert_eq!(told.recv(), Ok("waits"));
            assert!(told.try_recv().is_err());
            assert_eq!(pool.free(), 6);
            drop(inside);
            assert_eq!(told.recv(), Ok("entered"));
        });
        assert_eq!(pool.free(), 8);
    }
}
