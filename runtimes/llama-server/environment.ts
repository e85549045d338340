/** Variables that an engine may inherit: what the system, drivers and libraries need, and nothing that sets llama.cpp up. */
const NAMES = new Set([
  'PATH',
  'HOME',
  'USER',
  'LOGNAME',
  'TMPDIR',
  'TMP',
  'TEMP',
  'LANG',
  'TZ',
  'LD_LIBRARY_PATH',
  'XDG_CACHE_HOME',
  'XDG_RUNTIME_DIR',
  'DRI_PRIME',
  'SYSTEMROOT',
  'SYSTEMDRIVE',
  'WINDIR',
  'COMSPEC',
  'PATHEXT',
  'USERPROFILE',
  'LOCALAPPDATA',
  'PROGRAMFILES',
  'NUMBER_OF_PROCESSORS'
])
const PREFIXES = [
  'LC_',
  'DYLD_',
  'CUDA_',
  'NVIDIA_',
  'HIP_',
  'ROCR_',
  'ROCM_',
  'HSA_',
  'GPU_',
  'GGML_',
  'VK_',
  'MESA_',
  'RADV_',
  'SYCL_',
  'ONEAPI_',
  'ZE_',
  'OMP_',
  'GOMP_',
  'KMP_',
  'PROCESSOR_'
]

export interface EngineEnvironment {
  /** An empty folder: where llama-server looks for its configuration file. */
  configHome: string
  /** Every request must carry it. Given here since command lines are visible to all users. */
  apiKey: string
  /** What the build and the model's settings add. */
  more?: Readonly<Record<string, string>>
}

/**
 * The environment of an engine. `LLAMA_ARG_*` and configuration files would change an engine behind corral's back, so
 * only harmless variables pass.
 */
export function engineEnvironment(
  ambient: NodeJS.ProcessEnv,
  { configHome, apiKey, more }: EngineEnvironment
): Record<string, string> {
  const environment: Record<string, string> = {}
  for (const [name, value] of Object.entries(ambient)) {
    // Windows does not tell upper from lower case in names.
    const upper = name.toUpperCase()
    const allowed = NAMES.has(upper) || PREFIXES.some(prefix => upper.startsWith(prefix))
    if (allowed && value !== undefined) environment[name] = value
  }
  return {
    ...environment,
    ...more,
    XDG_CONFIG_HOME: configHome,
    APPDATA: configHome,
    PROGRAMDATA: configHome,
    LLAMA_API_KEY: apiKey,
    // Makes llama-server behave as a router's child: progress on stdout, and it exits when stdin ends. The number is
    // not used.
    LLAMA_SERVER_ROUTER_PORT: '1'
  }
}
