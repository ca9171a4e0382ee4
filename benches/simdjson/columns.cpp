// Reads the columns of a stream's raw messages with simdjson on demand, typed, and sums them.
// Prints the seconds of each round, without reading the file and finding its lines.

#include <simdjson.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

using namespace simdjson;

static uint64_t unsigned_column(ondemand::array column, std::vector<uint32_t> &out) {
  out.clear();
  for (auto value : column) out.push_back(static_cast<uint32_t>(uint64_t(value.get_uint64())));
  return out.empty() ? 0 : out.back();
}

static uint64_t signed_column(ondemand::array column, std::vector<int64_t> &out) {
  out.clear();
  for (auto value : column) out.push_back(value.get_int64());
  return out.empty() ? 0 : uint64_t(out.back());
}

int main(int argc, char **argv) {
  if (argc < 3) return 2;
  padded_string text = padded_string::load(argv[1]);
  std::vector<padded_string> lines;
  const char *start = text.data(), *end = start + text.size();
  while (start < end) {
    const char *stop = static_cast<const char *>(memchr(start, '\n', size_t(end - start)));
    if (!stop) stop = end;
    if (std::string_view(start, size_t(stop - start)).substr(0, 14) == "{\"type\":\"raw\",")
      lines.emplace_back(start, size_t(stop - start));
    start = stop + 1;
  }
  ondemand::parser parser;
  std::vector<uint32_t> frames, parents, status, stack;
  std::vector<int64_t> times;
  for (int round = 0; round < atoi(argv[2]); round++) {
    auto begin = std::chrono::steady_clock::now();
    uint64_t sum = 0;
    for (auto &line : lines) {
      ondemand::document message = parser.iterate(line);
      sum += uint64_t(message["seq"].get_uint64());
      sum += uint64_t(message["samples"].get_uint64());
      sum += unsigned_column(message["stack_frame_id"].get_array(), frames);
      // The parent of a root is null.
      parents.clear();
      for (auto value : message["stack_parent"].get_array()) {
        uint64_t parent;
        parents.push_back(value.get_uint64().get(parent) == SUCCESS ? uint32_t(parent) : UINT32_MAX);
      }
      for (auto value : message["threads"].get_array()) {
        ondemand::object thread = value.get_object();
        sum += std::string_view(thread["thread_id"].get_string()).size();
        sum += signed_column(thread["ts_delta_usec"].get_array(), times);
        sum += unsigned_column(thread["status"].get_array(), status);
        stack.clear();
        for (auto node : thread["stack"].get_array()) {
          uint64_t number;
          stack.push_back(node.get_uint64().get(number) == SUCCESS ? uint32_t(number) : UINT32_MAX);
        }
        sum += stack.size();
      }
    }
    std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    std::printf("%.6f\n", seconds.count());
    std::fprintf(stderr, "checksum %llu\n", static_cast<unsigned long long>(sum));
  }
}
