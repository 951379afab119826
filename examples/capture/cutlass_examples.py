"""What of CUTLASS's own CuTe DSL examples goes into a bundle, by architecture.

    export CUTLASS_CHECKOUT=~/cutlass
    python -m aot capture examples/capture/cutlass_examples.py --arch sm80,sm90,sm100 --name cutlass

Tried with CUTLASS 4.7.0 and CuTe DSL 4.8.1. The examples compile for tensors that they allocate. Here the same classes
are compiled for tensors that have only a shape, and called through TVM-FFI. What `free()` gives stays symbolic.
"""

import importlib
import os
import sys

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import BFloat16, Float4E2M1FN, Float8E4M3FN, Float16, Float32, Int8, Int32, Int64
from cutlass.cute.nvgpu import OperandMajorMode
from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream, make_ptr

CHECKOUT = os.environ.get("CUTLASS_CHECKOUT") or sys.exit("set CUTLASS_CHECKOUT to a checkout of NVIDIA/cutlass")
EXAMPLES = os.path.join(CHECKOUT, "examples", "python", "CuTeDSL")
sys.path.insert(0, EXAMPLES)


def example(path):
    return importlib.import_module(f"cute.{path}")


def free(divisibility=1):
    """An extent that calls decide."""
    return cute.sym_int(divisibility=divisibility)


def tensor(dtype, *shape, order=None):
    """A tensor with rows in the last dimension, or in the order that is given: 0 is the dimension of stride 1."""
    order = order or tuple(reversed(range(len(shape))))
    return make_fake_compact_tensor(dtype, shape, stride_order=order, assumed_align=16)


def compile_kernel(kernel, *arguments):
    cute.compile(kernel, *arguments, options="--enable-tvm-ffi")


def stream():
    return make_fake_stream(use_tvm_ffi_env_stream=True)


def clusters(size):
    """How many clusters run at once: a constant of these kernels, which is that of one model per architecture."""
    return cutlass.utils.HardwareInfo().get_max_active_clusters(size)


def operands(dtype, out=None):
    """A, B and C of a matrix product: (m, k, l), (n, k, l) and (m, n, l), with rows in k, k and n."""
    m, n, k, batch = free(), free(8), free(16), free()
    shapes = (dtype, m, k), (dtype, n, k), (out or dtype, m, n)
    return [tensor(kind, rows, columns, batch, order=(1, 0, 2)) for kind, rows, columns in shapes]


def batched_operands(dtype):
    """The same as torch has them: (l, m, k), (l, k, n) and (l, m, n)."""
    m, n, k, batch = free(), free(8), free(16), free()
    b = tensor(dtype, batch, k, n, order=(2, 0, 1))
    return tensor(dtype, batch, m, k), b, tensor(dtype, batch, m, n)


def groups(dtype, count=4):
    """The arguments of a product of four groups: tensors that show the layout, then sizes, strides and addresses."""
    shapes = tensor(Int32, count, 4), tensor(Int32, count, 3, 2), tensor(Int64, count, 3)
    maps = tensor(Int64, clusters(1), 3, 16)
    return *operands(dtype), count, *shapes, 64, maps, clusters(1)


def ampere():
    batch, length, keys, heads = free(), free(), free(8), free()
    q, k = tensor(BFloat16, batch, length, heads, 128), tensor(BFloat16, batch, keys, heads, 128)
    attention = example("ampere.kernel.attention.flash_attention_v2").FlashAttentionForwardAmpere
    compile_kernel(attention(128, 128, 64, 128, is_causal=True), q, k, k, q, Float32(1), stream())
    hstu = example("ampere.kernel.attention.hstu_attention").HSTUAttentionForwardAmpere
    bias = tensor(BFloat16, batch, heads, length, keys)
    kernel = hstu(BFloat16, 1, 1024, 1024, 8, 128, 64, 64, 128, is_causal=True)
    compile_kernel(kernel, q, k, k, q, bias, stream())


def hopper():
    dense = example("hopper.kernel.dense_gemm.dense_gemm").HopperWgmmaGemmKernel
    compile_kernel(dense(Float32, (128, 256), (1, 1)), *operands(BFloat16), stream())
    persistent = example("hopper.kernel.dense_gemm.dense_gemm_persistent").HopperWgmmaGemmPersistentKernel
    compile_kernel(persistent(Float32, (128, 256), (1, 1), 1, True), *operands(BFloat16), clusters(1), stream())
    fp8 = example("hopper.kernel.dense_gemm.dense_gemm_fp8_2xacc").HopperFP8WarpSpecialized2xAccGemmKernel
    scales = tensor(Float32, 1), tensor(Float32, 1)
    product = operands(Float8E4M3FN, out=BFloat16)
    compile_kernel(fp8((128, 128), (1, 1), 1, True), *product, *scales, clusters(1), stream())
    grouped = example("hopper.kernel.grouped_gemm.grouped_gemm").HopperGroupedGemmPersistentKernel
    compile_kernel(grouped(Float32, (128, 128), (1, 1), 1, True), *groups(BFloat16), stream())
    module = example("hopper.kernel.attention.fmha")
    mask = module.fmha_utils.MaskEnum.WINDOW_MASK
    kernel = module.HopperFusedMultiHeadAttentionForward(Float32, Float32, (64, 128, 128), False, mask)
    batch, length, keys, heads, group = (free() for _ in range(5))
    order = (3, 0, 1, 2, 4)  # (length, head dimension, query heads per key head, key heads, batch)
    q = tensor(BFloat16, length, 128, group, heads, batch, order=order)
    k = tensor(BFloat16, keys, 128, 1, heads, batch, order=order)
    sums = tensor(Float32, length, 1, group, heads, batch, order=order)
    compile_kernel(kernel, q, k, k, q, sums, *[Float32(1)] * 3, None, Int32(0), stream())


def blackwell():
    gemms()
    attentions()
    state_space()


def gemms():
    tile = Float32, False, (128, 128), (1, 1)
    dense = example("blackwell.kernel.dense_gemm.dense_gemm").DenseGemmKernel
    compile_kernel(dense(*tile, True), *operands(BFloat16), stream())
    persistent = example("blackwell.kernel.dense_gemm.dense_gemm_persistent")
    kernel = persistent.PersistentDenseGemmKernel(*tile, True)
    compile_kernel(persistent.bmm, kernel, *batched_operands(BFloat16), clusters(1), stream())
    dynamic = example("blackwell.kernel.dense_gemm.dense_gemm_persistent_dynamic")
    compile_kernel(dynamic.bmm, dynamic.PersistentDenseGemmKernel(*tile, True), *batched_operands(BFloat16), stream())
    grouped = example("blackwell.kernel.grouped_gemm.grouped_gemm").GroupedGemmKernel
    compile_kernel(grouped(*tile), *groups(BFloat16), stream())
    mixed = example("blackwell.kernel.mixed_input_gemm.mixed_input_gemm").MixedInputGemmKernel
    _, b, c = operands(BFloat16)
    a = tensor(Int8, c.shape[0], b.shape[1], c.shape[2], order=(1, 0, 2))
    kernel = mixed(0, 0, Float32, False, (128, 128, 128), (1, 1), True, False)
    compile_kernel(kernel, a, None, b, c, clusters(1), stream())
    block_scaled()
    custom_epilogue()


def block_scaled():
    """Operands of 4 bits with a scale for every 16: nvfp4. The kernel takes pointers, and so the stream as an argument."""
    path = "blackwell.kernel.blockscaled_gemm.dense_blockscaled_gemm_persistent"
    kernel = example(path).Sm100BlockScaledPersistentDenseGemmKernel(16, (128, 128), (1, 1))
    dtypes = (Float4E2M1FN, Float4E2M1FN, Float8E4M3FN, Float8E4M3FN, BFloat16)
    pointers = [make_ptr(dtype, 0, cute.AddressSpace.gmem, assumed_align=32) for dtype in dtypes]
    layouts = OperandMajorMode.K, OperandMajorMode.K, cutlass.utils.LayoutEnum.ROW_MAJOR
    sizes = tuple(Int32(0) for _ in range(4))
    compile_kernel(kernel, *pointers, layouts, sizes, clusters(1), make_fake_stream())


def custom_epilogue():
    """The example packs the tensors of its epilogue into a class, which TVM-FFI does not take: they are passed one by one."""
    sys.path.insert(0, os.path.join(EXAMPLES, "cute", "blackwell", "efc"))
    gemm = example("blackwell.efc.custom_epilogue_dense_gemm").DenseGemmAlphaBeta
    kernel = gemm(Float32, Float32, False, (128, 128), (1, 1), scaled_sum)
    a, b, c = operands(BFloat16)
    more = c, c, Float32(1), Float32(1)
    kernel.efc.compile(more)
    compile_kernel(gemm_with_epilogue, a, b, *more, stream(), kernel, clusters(1))


def scaled_sum(efc_config, c, d, alpha, beta):
    d.store(efc_config.accum() * alpha + c.load() * beta)


@cute.jit
def gemm_with_epilogue(
    a: cute.Tensor,
    b: cute.Tensor,
    c: cute.Tensor,
    d: cute.Tensor,
    alpha: Float32,
    beta: Float32,
    stream: CUstream,
    kernel: cutlass.Constexpr,
    active: cutlass.Constexpr,
):
    kernel(a, b, active, stream, kernel.efc.jit.pack_arguments(c, d, alpha, beta))


def attentions():
    module = example("blackwell.kernel.attention.fmha.fmha")
    mask = module.fmha_utils.MaskEnum.WINDOW_MASK
    kernel = module.BlackwellFusedMultiHeadAttentionForward(
        Float32, Float32, (128, 128), 128, False, mask, enable_ex2_emulation=False, enable_skip_correction=False
    )
    batch, length, keys, heads, group = (free() for _ in range(5))
    q, k = tensor(BFloat16, batch, length, heads, group, 128), tensor(BFloat16, batch, keys, heads, 1, 128)
    sizes, scales = tuple(Int32(0) for _ in range(8)), [Float32(1)] * 3
    left_out = None, None, None, None  # cumulative lengths, sums, sinks
    windows = None, None, Int32(0), None, None
    compile_kernel(kernel, q, k, k, q, sizes, *left_out, *scales, *windows, stream(), False)
    latent_attention()


def latent_attention():
    """Decoding with pages of 128 tokens, 128 heads, a latent dimension of 512 and a rotary one of 64."""
    module = example("blackwell.kernel.attention.mla.mla_decode_fp16")
    kernel = module.BlackwellMultiHeadLatentAttentionForwardFP16(
        Float32, Float32, (128, 128), (128, 256), clusters(2), 128, 0.0, True, True, False
    )
    batch, length, pages, table = free(), free(), free(), free()
    latent, rotary = (tensor(Float16, 128, head, length, batch, order=(1, 0, 2, 3)) for head in (512, 64))
    cache, rotary_cache = (tensor(Float16, 128, head, pages, order=(1, 0, 2)) for head in (512, 64))
    page_table, used = tensor(Int32, table, batch, order=(0, 1)), tensor(Int32, batch)
    sums, workspace = tensor(Float32, 128, length, batch, order=(0, 1, 2)), tensor(Int8, free())
    tensors = latent, rotary, cache, rotary_cache, page_table, latent, sums, workspace
    compile_kernel(kernel, *tensors, Int32(1), used, None, Float32(1), Float32(1), stream())


def state_space():
    """Mamba-2 with chunks of 128 tokens, a head dimension of 64 and a state of 128."""
    kernel = example("blackwell.kernel.attention.mamba2_ssd.mamba2_ssd").SSDKernel
    batch, heads, chunks, group = (free() for _ in range(4))
    columns = 0, 2, 1, 3, 4
    x = tensor(BFloat16, 64, 128, chunks, heads, batch, order=(2, 0, 1, 3, 4))
    sums, delta = (tensor(dtype, 128, chunks, heads, batch, order=(0, 1, 2, 3)) for dtype in (Float32, BFloat16))
    b = tensor(BFloat16, 128, 128, chunks, group, batch, order=columns)
    y = tensor(BFloat16, 128, 64, chunks, heads, batch, order=columns)
    state, skip = tensor(BFloat16, 64, 128, heads, batch, order=(1, 0, 2, 3)), tensor(BFloat16, 1, heads, order=(0, 1))
    ssd = kernel(BFloat16, Float32, Float32, 128, 64, 128, True, False)
    compile_kernel(ssd, x, sums, delta, b, b, y, state, skip, clusters(1), stream())


KERNELS = {"8": [ampere], "9": [ampere, hopper], "10": [ampere, blackwell]}  # Ampere's code runs on later devices too
major = os.environ["CUTE_DSL_ARCH"].removeprefix("sm_").rstrip("af")[:-1]
if major not in KERNELS:
    sys.exit(f"there are no kernels here for {os.environ['CUTE_DSL_ARCH']}")
for compile_all in KERNELS[major]:
    compile_all()
