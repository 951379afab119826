/* Demo 4: C99, with the bundle linked. */
#include <demo.h>

#include <math.h>

#include "device.h"

enum { N = 5000 };

static float x[N], y[N], out[N];

static int refused(int code) {
  printf("c: refused: %s\n", aot_error_text());
  return code == AOT_ERROR_DRIVER ? EXIT_NO_GPU : EXIT_FAILED;
}

static int holds(const device_driver* driver, const float* on_gpu, float alpha) {
  if (driver->synchronize(NULL) != 0 || driver->download(out, device_at(on_gpu), sizeof out) != 0) return 0;
  for (int i = 0; i < N; ++i) {
    if (fabsf(out[i] - (alpha * x[i] + y[i])) > 1e-6f) return 0;
  }
  return 1;
}

int main(void) {
  device_driver driver;
  float *gpu_x = NULL, *gpu_y = NULL, *gpu_out = NULL;
  int failures = 0;

  for (int i = 0; i < N; ++i) {
    x[i] = (float)(i % 100) - 50.0f;
    y[i] = (float)(i % 3);
  }
  if (!device_open(&driver)) {
    /* An address that is never accessed: the bundle says why it refuses. */
    const aot_tensor* nowhere = aot_tensor_of((void*)256, AOT_FLOAT32, N);
    return refused(demo_axpy(nowhere, nowhere, nowhere, 1.0));
  }
  if (!device_fill(&driver, &gpu_x, x, N) || !device_fill(&driver, &gpu_y, y, N) || !device_fill(&driver, &gpu_out, y, N)) {
    printf("c: FAIL: the GPU gave no memory\n");
    return EXIT_FAILED;
  }
  const aot_tensor* tensor_x = aot_tensor_of(gpu_x, AOT_FLOAT32, N);
  const aot_tensor* tensor_y = aot_tensor_of(gpu_y, AOT_FLOAT32, N);
  const aot_tensor* tensor_out = aot_tensor_of(gpu_out, AOT_FLOAT32, N);

  int code = demo_axpy(tensor_x, tensor_y, tensor_out, 4.0);
  if (code != AOT_OK) return refused(code);
  report("c: axpy", holds(&driver, gpu_out, 4.0f), &failures);
  code = demo_axpy_on(NULL, tensor_x, tensor_y, tensor_out, 1.5);
  if (code != AOT_OK) return refused(code);
  report("c: axpy on the default stream", holds(&driver, gpu_out, 1.5f), &failures);
  report("c: a null tensor is refused", demo_axpy(NULL, tensor_y, tensor_out, 1.0) == AOT_ERROR_ARGUMENT, &failures);
  report("c: the reason is a sentence", strlen(aot_error_text()) > 20, &failures);
  driver.release(device_at(gpu_x));
  driver.release(device_at(gpu_y));
  driver.release(device_at(gpu_out));
  return failures == 0 ? EXIT_OK : EXIT_FAILED;
}
