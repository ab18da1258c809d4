// Messages between GPUs, for `make race`: words that are stored and polled. They do not race, but a
// word may be overwritten before its reader has seen it, and a reader may go on without it.
//
// A thread takes a word when it loads one of which it has not known, and also any other value with
// which it goes on: a thread that polls loads the word again before it does anything else. The next
// store must come after that, by program order, synchronisation and words. The first time that a
// thread polls a word after a store that nothing orders before it, it sees the value before the
// store: a thread that waits for the right epoch polls again.
#include "common/watch/races.h"

namespace lnc::race {

/// A thread loads a word. Returns whether it sees the newest.
/// @param seen the version that the thread has seen last; null if none
bool Races::load(const std::byte* address, const Actor& actor, Place place,
                 const std::uint64_t* seen) {
  Word& word = words_[address];
  const bool is_news =
      word.sender && !actor.moment().is_after_by_words(
                         word.sender->record.block, word.sender->thread, word.sender->record.tick);
  const bool is_newest = !is_news || (seen != nullptr && *seen + 1 >= word.version);
  const Word::Read read{record_of(actor, Way::WordLoad, place), actor.thread,
                        word.version - (is_newest ? 0 : 1)};
  std::erase_if(word.polls,
                [&](const auto& each) { return each.is_of(actor.block, actor.thread); });
  (is_news && is_newest ? word.taken : word.polls).push_back(read);
  return is_newest;
}

/// A thread that polls a word goes on with the value that it has loaded.
void Races::take(const std::byte* address, const Actor& actor) {
  Word& word = words_[address];
  const auto poll = std::find_if(word.polls.begin(), word.polls.end(), [&](const auto& each) {
    return each.is_of(actor.block, actor.thread);
  });
  if (poll == word.polls.end()) return;
  const Word::Read read = *poll;
  word.polls.erase(poll);
  if (read.version == word.version)
    word.taken.push_back(read);
  else
    report(word.sender->record, actor, read.record, Order::TooEarly, of_device(), address);
}

/// A thread stores a word, over one that others should have taken.
void Races::overwrite(const std::byte* address, const Actor& actor, Place place) {
  Word& word = words_[address];
  const Record mine = record_of(actor, Way::WordStore, place);
  const auto lose = [&](const Word::Read& read) {
    report(read.record, actor, mine, Order::Overwritten, of_device(), address);
  };
  for (const Word::Read& read : word.taken)
    if (!actor.moment().is_after_by_words(read.record.block, read.thread, read.record.tick))
      lose(read);
  for (const Word::Read& poll : word.polls)
    if (poll.version < word.version) lose(poll);
  word.taken.clear();
  ++word.version;
  word.sender = {mine, actor.thread, actor.knows};
  auto passed = std::make_shared<Clocks>();
  passed->learn_by_words(*actor.knows);
  BlockClock own;
  own.learn_thread(actor.thread, actor.now);
  join(passed->by_words.blocks, {actor.block, std::make_shared<const BlockClock>(own)});
  word.by_words = passed;
}

}  // namespace lnc::race
