/* NVIDIA's own calculation, with the limits of a multiprocessor that archs.json has. */
#include <cuda_occupancy.h>

int blocks_of_nvidia(int major, int minor, int threads_of_sm, int memory_of_sm, int memory_of_block, int threads,
                     int registers, int dynamic_memory) {
  cudaOccResult result;
  cudaOccDeviceState state = {CACHE_PREFER_NONE, 100}; /* all of the memory that can be shared memory is */
  cudaOccDeviceProp device = {major, minor, 1024, threads_of_sm, 65536, 65536, 32, 48 * 1024, memory_of_sm, 1,
                              memory_of_block, 1024};
  cudaOccFuncAttributes function = {1024, registers, 0, PARTITIONED_GC_OFF, FUNC_SHMEM_LIMIT_OPTIN, memory_of_block, 1};
  if (cudaOccMaxActiveBlocksPerMultiprocessor(&result, &device, &function, &state, threads, dynamic_memory) != 0) return -1;
  return result.activeBlocksPerMultiprocessor;
}

/* The limits that the header itself knows. */
int most_blocks_of_nvidia(int major, int minor) {
  int limit = -1;
  cudaOccDeviceProp device = {major, minor, 1024, 2048, 65536, 65536, 32, 48 * 1024, 1, 1, 1, 1024};
  return cudaOccMaxBlocksPerMultiprocessor(&limit, &device) == 0 ? limit : -1;
}

int is_most_memory_of_nvidia(int major, int minor, int bytes) {
  size_t whole = (size_t)bytes, more = (size_t)bytes + 1;
  cudaOccDeviceProp device = {major, minor, 1024, 2048, 65536, 65536, 32, 48 * 1024, 1, 1, 1, 1024};
  return cudaOccAlignUpShmemSizeVoltaPlus(&whole, &device) == 0 && whole == (size_t)bytes &&
         cudaOccAlignUpShmemSizeVoltaPlus(&more, &device) != 0;
}
