/*
 * The features of processors that llama.cpp has code for (GGML_CPU_ALL_VARIANTS in its ggml/src/CMakeLists.txt), by the
 * names that Linux gives them in /proc/cpuinfo and macOS in sysctl.
 */

/** Name here → name in /proc/cpuinfo, where they differ. */
const X86: Record<string, string> = {
  ssse3: 'ssse3',
  sse42: 'sse4_2',
  avx: 'avx',
  avx2: 'avx2',
  fma: 'fma',
  f16c: 'f16c',
  bmi2: 'bmi2',
  avx_vnni: 'avx_vnni',
  avx512f: 'avx512f',
  avx512bw: 'avx512bw',
  avx512cd: 'avx512cd',
  avx512dq: 'avx512dq',
  avx512vl: 'avx512vl',
  avx512_vbmi: 'avx512vbmi',
  avx512_vnni: 'avx512_vnni',
  avx512_bf16: 'avx512_bf16',
  amx_int8: 'amx_int8',
  amx_bf16: 'amx_bf16'
}

/** Name here → name of the single value on Intel Macs, where they differ. */
const MAC_X86: Record<string, string> = { ssse3: 'supplementalsse3', sse42: 'sse4_2', avx: 'avx1_0', avx2: 'avx2_0' }

/** Name here, which is that in /proc/cpuinfo → the macOS one. */
const ARM: Record<string, string | undefined> = {
  asimd: 'AdvSIMD',
  asimddp: 'FEAT_DotProd',
  asimdhp: 'FEAT_FP16',
  bf16: 'FEAT_BF16',
  i8mm: 'FEAT_I8MM',
  sve: undefined,
  sve2: undefined,
  sme: 'FEAT_SME'
}

/** The features in a list of flags as Linux prints it. */
export function featuresOfFlags(flags: string): string[] {
  const given = new Set(flags.toLowerCase().split(/\s+/))
  const x86 = Object.keys(X86).filter(feature => given.has(X86[feature]!))
  return [...x86, ...Object.keys(ARM).filter(feature => given.has(feature))]
}

/** The features in what `sysctl` of a Mac says; `values` by key. */
export function featuresOfSysctl(values: ReadonlyMap<string, string>): string[] {
  // On Intel Macs: `SSE4.2 AVX1.0 F16C FMA`, and `AVX2 BMI2` in another list; or each by itself.
  const single = Object.keys(X86).filter(feature => {
    const name = MAC_X86[feature] ?? feature
    return values.get(`hw.optional.${name}`) === '1'
  })
  const flags = ['machdep.cpu.features', 'machdep.cpu.leaf7_features']
    .map(key => values.get(key) ?? '')
    .concat(single.map(feature => X86[feature]!))
    .join(' ')
    .toLowerCase()
    .replace('sse4.2', 'sse4_2')
    .replace('avx1.0', 'avx')
  const arm = Object.entries(ARM).filter(([, name]) => {
    if (name === undefined) return false
    return values.get(`hw.optional.arm.${name}`) === '1' || values.get(`hw.optional.${name}`) === '1'
  })
  return [...featuresOfFlags(flags), ...arm.map(([feature]) => feature)]
}
