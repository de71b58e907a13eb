// A batch checks itself once, when it is made; every layer's kernels then trust it.
#include <algorithm>

#include "objects.h"

namespace statemark {

uint64_t next_hash(uint64_t hash, int32_t token) {
  return hash * 0x9E3779B97F4A7C15ull + static_cast<uint64_t>(token) + 1;
}

Batch::Batch(std::vector<int32_t> token_ids_, std::vector<int32_t> seq_start_, std::vector<int32_t> seq_position_,
             std::vector<uint64_t> seq_hash_, std::vector<int32_t> state_in_, std::vector<int32_t> state_out_,
             std::vector<int32_t> marks_, std::vector<int32_t> page_table_, int64_t page_columns_)
    : token_ids(std::move(token_ids_)),
      seq_start(std::move(seq_start_)),
      seq_position(std::move(seq_position_)),
      seq_hash(std::move(seq_hash_)),
      state_in(std::move(state_in_)),
      state_out(std::move(state_out_)),
      marks(std::move(marks_)),
      page_table(std::move(page_table_)),
      page_columns(page_columns_) {
  check_sequences();
  check_marks();
  check_writers();
  hash_tokens();
}

void Batch::check_sequences() const {
  const auto n = static_cast<size_t>(seqs());
  require(seq_start.size() == n + 1 && seq_hash.size() == n && state_in.size() == n && state_out.size() == n &&
              page_table.size() == n * static_cast<size_t>(page_columns),
          "arrays disagree about the number of sequences: seq_start ", seq_start.size(), " (one more), seq_position ",
          n, ", seq_hash ", seq_hash.size(), ", state_in ", state_in.size(), ", state_out ", state_out.size());
  require(seq_start[0] == 0 && seq_start[n] == tokens(), "seq_start must go from 0 to ", tokens(), ", goes from ",
          seq_start[0], " to ", seq_start[n]);
  for (int64_t t = 0; t < tokens(); ++t)
    require(token_ids[static_cast<size_t>(t)] >= 0, "token id ", token_ids[static_cast<size_t>(t)], " at ", t,
            " is negative");
  for (size_t s = 0; s < n; ++s) {
    const int64_t count = int64_t(seq_start[s + 1]) - seq_start[s], position = seq_position[s];
    require(count >= 1, "sequence ", s, " has ", count, " tokens; it needs at least one");
    require(position >= 0 && position + count < (int64_t(1) << 31), "sequence ", s, " is at position ", position);
    require((state_in[s] == -1) == (position == 0) && state_in[s] >= -1, "sequence ", s, " at position ", position,
            " has state_in ", state_in[s], "; it is -1 at position 0 and a slot elsewhere");
    require(state_out[s] >= 0, "sequence ", s, " has state_out ", state_out[s]);
    const int64_t pages = (position + count + kPage - 1) / kPage;
    require(pages <= page_columns, "sequence ", s, " needs ", pages, " pages, page_table has ", page_columns,
            " columns");
    for (int64_t p = 0; p < pages; ++p)
      require(page_table[s * static_cast<size_t>(page_columns) + static_cast<size_t>(p)] >= 0, "sequence ", s,
              " has no page at ", p);
  }
}

void Batch::check_marks() {
  token_seq_.resize(static_cast<size_t>(tokens()));
  for (int64_t s = 0; s < seqs(); ++s)
    std::fill(token_seq_.begin() + seq_start[s], token_seq_.begin() + seq_start[s + 1], static_cast<int32_t>(s));
  mark_begin_.assign(static_cast<size_t>(seqs() + 1), 0);
  std::pair<int32_t, int32_t> before{-1, 0};
  for (size_t m = 0; m < marks.size() / 3; ++m) {
    const int32_t s = marks[3 * m], offset = marks[3 * m + 1], slot = marks[3 * m + 2];
    require(s >= 0 && s < seqs(), "mark ", m, " is of sequence ", s, " of ", seqs());
    require(offset >= 1 && offset <= seq_start[s + 1] - seq_start[s] && slot >= 0, "mark ", m, " (sequence ", s,
            ", offset ", offset, ", slot ", slot, ") is outside a chunk of ", seq_start[s + 1] - seq_start[s],
            " tokens");
    require(before <= std::make_pair(s, offset), "marks must be sorted by (sequence, offset); mark ", m, " isn't");
    before = {s, offset};
    ++mark_begin_[static_cast<size_t>(s) + 1];
  }
  for (size_t s = 0; s < static_cast<size_t>(seqs()); ++s) mark_begin_[s + 1] += mark_begin_[s];
}

// What one sequence writes nobody else may read or write in this batch: a task would race with another.
void Batch::check_writers() const {
  std::vector<std::pair<int32_t, int32_t>> slots;  // written slot, sequence
  for (int32_t s = 0; s < seqs(); ++s) slots.emplace_back(state_out[s], s);
  for (size_t m = 0; m < marks.size() / 3; ++m) slots.emplace_back(marks[3 * m + 2], marks[3 * m]);
  std::sort(slots.begin(), slots.end());
  for (size_t i = 1; i < slots.size(); ++i)
    require(slots[i].first != slots[i - 1].first, "slot ", slots[i].first, " is written twice: by sequences ",
            slots[i - 1].second, " and ", slots[i].second);
  const auto writer = [](const std::vector<std::pair<int32_t, int32_t>>& all, int32_t index) {
    const auto at = std::lower_bound(all.begin(), all.end(), std::make_pair(index, int32_t(-1)));
    return at != all.end() && at->first == index ? at->second : int32_t(-1);
  };
  std::vector<std::pair<int32_t, int32_t>> pages;
  for (int32_t s = 0; s < seqs(); ++s) {
    const int32_t by = writer(slots, state_in[s]);
    require(by == -1 || state_in[s] == state_out[s], "slot ", state_in[s], " is read by sequence ", s,
            " and written by sequence ", by);
    const int64_t last = (int64_t(seq_position[s]) + seq_start[s + 1] - seq_start[s] - 1) / kPage;
    for (int64_t p = seq_position[s] / kPage; p <= last; ++p)
      pages.emplace_back(page_table[static_cast<size_t>(s * page_columns + p)], s);
  }
  std::sort(pages.begin(), pages.end());
  for (size_t i = 1; i < pages.size(); ++i)
    require(pages[i].first != pages[i - 1].first, "page ", pages[i].first, " is written twice: by sequences ",
            pages[i - 1].second, " and ", pages[i].second);
  for (int32_t s = 0; s < seqs(); ++s)
    for (int64_t p = 0; p < seq_position[s] / kPage; ++p) {
      const int32_t index = page_table[static_cast<size_t>(s * page_columns + p)], by = writer(pages, index);
      require(by == -1, "page ", index, " is read by sequence ", s, " and written by sequence ", by);
    }
}

void Batch::hash_tokens() {
  for (int64_t s = 0; s < seqs(); ++s) {
    uint64_t hash = seq_hash[s];
    auto mark = static_cast<size_t>(mark_begin_[s]);
    for (int32_t t = seq_start[s]; t < seq_start[s + 1]; ++t) {
      hash = next_hash(hash, token_ids[t]);
      for (; mark < static_cast<size_t>(mark_begin_[s + 1]) && marks[3 * mark + 1] == t - seq_start[s] + 1; ++mark)
        mark_hash.push_back(hash);
    }
    end_hash.push_back(hash);
    largest_slot_ = std::max({largest_slot_, state_in[s], state_out[s]});
    const int64_t pages = (int64_t(seq_position[s]) + seq_start[s + 1] - seq_start[s] + kPage - 1) / kPage;
    for (int64_t p = 0; p < pages; ++p)
      largest_page_ = std::max(largest_page_, page_table[static_cast<size_t>(s * page_columns + p)]);
  }
  for (size_t m = 0; m < marks.size() / 3; ++m) largest_slot_ = std::max(largest_slot_, marks[3 * m + 2]);
}

void Batch::check_arena(const Arena& arena) const {
  require(largest_slot_ < arena.num_slots, "slot ", largest_slot_, " is out of range: the arena has ", arena.num_slots);
  require(largest_page_ < arena.num_pages, "page ", largest_page_, " is out of range: the arena has ", arena.num_pages);
}

BatchView Batch::view() const {
  return {tokens(),          seqs(),       seq_start.data(), seq_position.data(), state_in.data(),  state_out.data(),
          page_table.data(), page_columns, marks.data(),     mark_begin_.data(),  token_seq_.data()};
}

}  // namespace statemark
