import t from 'tap'
import { builtInKinds } from '../../../../runtimes/llama-cpp/kinds/index.ts'
import { rankRuntimes } from '../../../../runtimes/llama-cpp/ranking.ts'
import { BUNDLED_LISTING } from '../../../../runtimes/llama-cpp/sources/release.ts'
import {
  answers,
  INTEL_GRAPHICS,
  look,
  PLAIN,
  type Recorded,
  recordedFiles,
  recording
} from '../../../plugins/running/hardware/support.ts'

const prints = (program: string, name: string): Recorded => ({ files: {}, programs: { [program]: recording(name) } })
const fails = (program: string, name: string, code: number): Recorded => ({
  files: {},
  programs: { [program]: answers({ '*': recording(name) }, code) }
})
const VULKAN = { ...PLAIN, '/usr/lib/x86_64-linux-gnu/libvulkan.so.1': '' }

/** Rankings for recordings of real machines. The archives are for x64 on every test machine. */
const CASES: [what: string, recorded: Recorded, order: string][] = [
  ['RTX 4080 S, table', prints('nvidia-smi', 'nvidia/smi-table-single-4080s-595.txt'), 'cuda-13 cuda-12 vulkan cpu'],
  ['RTX 4080 S', prints('nvidia-smi', 'nvidia/smi-query-single-4080s-595.csv.txt'), 'cuda-13 cuda-12 vulkan cpu'],
  ['RTX 2080 S', prints('nvidia-smi', 'nvidia/smi-table-2080s-610-new-banner.txt'), 'cuda-13 cuda-12 vulkan cpu'],
  ['RTX 4070 Ti S, driver 550', prints('nvidia-smi', 'nvidia/smi-table-4070tis-550.txt'), 'cuda-12 vulkan cpu'],
  ['H100 in MIG mode', prints('nvidia-smi', 'nvidia/smi-query-h100-mig-590.csv.txt'), 'cuda-13 cuda-12 cpu'],
  ['driver and library differ', fails('nvidia-smi', 'nvidia/smi-err-nvml-version-mismatch.txt', 18), 'cpu'],
  ['driver not loaded', fails('nvidia-smi', 'nvidia/smi-err-cannot-communicate-wsl2.txt', 9), 'cpu'],
  ['no devices', fails('nvidia-smi', 'nvidia/smi-err-no-devices.txt', 6), 'cpu'],
  [
    'broken driver beside integrated graphics',
    { ...fails('nvidia-smi', 'nvidia/smi-err-nvml-version-mismatch.txt', 18), files: { ...VULKAN, ...INTEL_GRAPHICS } },
    'vulkan sycl cpu'
  ],
  ['RX 7900 XT', prints('rocm-smi', 'rocm/rocm-smi-showmeminfo-json-7900xt.txt'), 'rocm vulkan cpu'],
  ['RX 6700 XT', prints('rocm-smi', 'rocm/rocm-smi-json-rx6700xt-rocm612.txt'), 'vulkan rocm cpu'],
  ['RX 6800 and Raphael', prints('rocm-smi', 'rocm/rocm-smi-csv-6800-plus-raphael-igpu.txt'), 'rocm vulkan cpu'],
  ['Radeon 780M', prints('amd-smi', 'rocm/amd-smi-static-780m-unsupported.txt'), 'vulkan rocm cpu'],
  ['Strix Halo', prints('rocminfo', 'rocm/rocminfo-gfx1151-strix-halo-wsl.txt'), 'rocm vulkan cpu'],
  [
    'Strix Halo, kernel',
    { files: { ...VULKAN, ...recordedFiles('rocm/kfd-topology-gfx1151-minimal.txt') } },
    'vulkan rocm cpu'
  ],
  ['MI300X with its early name', prints('rocminfo', 'rocm/rocminfo-mi300x-gfx941.txt'), 'rocm cpu'],
  ['Vega 10, kernel', { files: recordedFiles('rocm/kfd-topology-vega10-old-no-gfxver.txt') }, 'vulkan cpu'],
  ['Arc A770', prints('xpu-smi', 'intel/xpu-smi-discovery-a770.txt'), 'vulkan sycl cpu'],
  [
    'Arc A770 with oneAPI',
    {
      ...prints('xpu-smi', 'intel/xpu-smi-discovery-a770.txt'),
      files: {
        ...VULKAN,
        '/opt/intel/oneapi/redist/lib/libsycl.so.8': '',
        '/usr/lib/x86_64-linux-gnu/libze_loader.so.1': ''
      }
    },
    'sycl vulkan cpu'
  ],
  ['integrated graphics only', { files: { ...VULKAN, ...INTEL_GRAPHICS } }, 'vulkan sycl cpu'],
  [
    'laptop with two GPUs',
    prints('vulkaninfo', 'vulkan/vulkaninfo-summary-intel-igpu-plus-4070-laptop.txt'),
    'cuda-13 cuda-12 vulkan cpu sycl'
  ],
  ['Steam Deck', prints('vulkaninfo', 'vulkan/vulkaninfo-summary-steamdeck-radv.txt'), 'vulkan rocm cpu'],
  ['Venus and llvmpipe', prints('vulkaninfo', 'vulkan/vulkaninfo-summary-venus-m2-plus-llvmpipe.txt'), 'vulkan cpu'],
  ['RX 6600 XT', prints('vulkaninfo', 'vulkan/vulkaninfo-rx6600xt-amd-proprietary.txt'), 'vulkan rocm cpu'],
  ['Adreno', prints('vulkaninfo', 'vulkan/vulkaninfo-qualcomm-multiline-driverinfo.txt'), 'cpu vulkan'],
  ['nothing', { files: PLAIN }, 'cpu']
]

t.test('ranks builds for recorded machines', async t => {
  const directory = t.testdir()
  const names = BUNDLED_LISTING.names
  for (const [what, recorded, order] of CASES) {
    const hardware = { ...(await look(directory, recorded)), arch: 'x64' }
    const ranking = rankRuntimes(builtInKinds, hardware, names).filter(({ usable }) => usable)
    t.equal(ranking.map(({ runtime }) => runtime).join(' '), order, what)
  }
})
