// Two versions of one bundle in one process, each with its own code. Usage: test_two_versions OLDER NEWER LIBTVM_FFI
#include <aot/aot.hpp>

#include "harness.hpp"

int main(int count, char** arguments) {
  if (count != 4) return 2;
  play({h100});
  aot::Options options;
  options.tvm_ffi = arguments[3];
  aot::Bundle older(arguments[1], options), newer(arguments[2], options);
  CHECK(older.name() == newer.name() && older.build() != newer.build());
  const auto out = aot::tensor(static_cast<float*>(fake_memory), {1000});
  for (int round = 0; round < 2; ++round) {
    older["fill_epilogue__identity"](out);
    CHECK(last_launch().block[0] == 96);
    newer["fill_epilogue__identity"](out);
    CHECK(last_launch().block[0] == 224);
  }
  CHECK(standin_launch_count() == 4 && standin_load_count() == 2);

  // What only one of them has.
  older["fill"](out, 1.0);
  CHECK_THROWS(aot::NotFoundError, "has no kernel `fill`", newer["fill"]);
  newer["fill_epilogue__relu"](out);
  CHECK(last_launch().block[0] == 160);
  return finish("test_two_versions");
}
