// Opens the bundle that it is given, if that is the one it was built for.
#include <aot/aot.hpp>

#include <cstdio>

int main(int count, char** arguments) {
  if (count != 2) return 2;
  aot::Options options;
  options.manifest_sha256 = AOT_BUNDLE_MANIFEST_SHA256;
  try {
    aot::Bundle bundle(arguments[1], options);
    std::puts("opened");
    return 0;
  } catch (const aot::Error& error) {
    std::puts(error.what());
    return 1;
  }
}
