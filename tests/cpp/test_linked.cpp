// The generated header of a bundle named `bundle`, linked statically or dynamically.
#include <bundle.hpp>

#include "harness.hpp"

static const auto out = aot::tensor(static_cast<float*>(fake_memory), {1000});

static void test_functions() {
  play({h100});
  bundle::fill(out);
  CHECK(last_launch().grid[0] == 8 && last_launch().block[0] == 128 && last_launch().stream == 0);
  bundle::fill(out, 2.0, aot::Stream(reinterpret_cast<void*>(0x77)));
  CHECK(last_launch().stream == 0x77);
  {
    aot::StreamScope scope(aot_bundle_core, reinterpret_cast<void*>(0x88));
    bundle::fill(out, 2.0);
    CHECK(last_launch().stream == 0x88);
  }
  bundle::fill_optional(out);
  CHECK(last_launch().block[0] == 32 && last_launch().stream == 0);
  bundle::fill_optional(out, aot::tensor(static_cast<float*>(other_memory), {4, 1000}));
  CHECK(last_launch().block[0] == 64);
  bundle::fill_epilogue(bundle::fill_epilogue_epilogue::relu, out);
  CHECK(last_launch().block[0] == 160);
  bundle::fill_epilogue__identity(out);
  CHECK(last_launch().block[0] == 96);
  bundle::fill_pair(out, out, 1.5, 3);
  CHECK(last_launch().grid[0] == 3);
  bundle::fill_pointer(fake_memory, 64, reinterpret_cast<void*>(0x55));
  CHECK(last_launch().grid[0] == 2 && last_launch().stream == 0x55);
  bundle::fill_everywhere(out);
  CHECK(last_launch().grid[0] == 132);
}

static void test_workspace() {
  alignas(256) static unsigned char scratch[16]; // the stand-in clears it
  CHECK(bundle::fill_parts_workspace_size(out, 1) == 0);
  const std::size_t needed = bundle::fill_parts_workspace_size(out, 4);
  CHECK(needed == sizeof scratch);
  scratch[15] = 1;
  bundle::fill_parts(out, 4, aot::tensor(scratch, {16}));
  CHECK(last_launch().grid[0] == 4 && scratch[15] == 0);
  CHECK_THROWS(aot::ArgumentError, "needs 16 bytes of scratch memory, `parts`", bundle::fill_parts(out, 4));
  std::size_t bytes = 0;
  CHECK(bundle_fill_parts_workspace_size(out.get(), 4, &bytes) == AOT_OK && bytes == 16);
  CHECK(bundle_fill_parts_workspace_size(nullptr, 4, &bytes) == AOT_ERROR_ARGUMENT && bytes == 0);
  CHECK(bundle_fill_parts_workspace_size(out.get(), 4, nullptr) == AOT_ERROR_USAGE);
}

static void test_errors() {
  CHECK_THROWS(aot::ArgumentError, "out.dtype", bundle::fill(aot::tensor(static_cast<int*>(fake_memory), {10})));
  CHECK(bundle_fill(nullptr, 1.0) == AOT_ERROR_ARGUMENT);
  CHECK(std::string(aot_error_text()).find("fill") != std::string::npos);
  CHECK(bundle_fill_on(reinterpret_cast<void*>(0x11), out.get(), 1.0) == AOT_OK);
  CHECK(last_launch().stream == 0x11);
  standin_fail("cudaLaunchKernelExC", 2, -1, 0, 1);
  CHECK_THROWS(aot::CudaError, "cudaErrorMemoryAllocation", bundle::fill(out));
  bundle::fill(out);
}

static void test_bundle() {
  aot::Bundle all = bundle::aot();
  CHECK(all.name() == "bundle" && all.functions().size() >= 7);
  all.preload(0);
  CHECK(bundle_preload(0) == AOT_OK);
  CHECK(all.explain("fill", 9, 0, out, 1.0).find("*sm_90a\tfill__f32__aligned") != std::string::npos);
  aot_interface other = aot_bundle_interface;
  other.major = AOT_PROTOCOL_MAJOR + 1;
  const std::string version = "2." + std::to_string(AOT_PROTOCOL_MINOR);
  CHECK_THROWS(aot::VersionError, ("speaks version " + version + " of the protocol").c_str(), aot::Bundle{other});
}

int main() {
  test_functions();
  test_workspace();
  test_errors();
  test_bundle();
  return finish("test_linked");
}
