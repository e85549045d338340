/** The listed parts of corral's environment that programs inherit. No key or token is passed on. */

/** For every program: variables of the system, drivers and libraries, but none that configure llama.cpp or Python. */
const NAMES = new Set(
  `PATH HOME USER LOGNAME TMPDIR TMP TEMP LANG LANGUAGE TZ LD_LIBRARY_PATH XDG_CACHE_HOME XDG_RUNTIME_DIR XDG_DATA_DIRS
  XDG_CONFIG_DIRS DRI_PRIME SYSTEMROOT SYSTEMDRIVE WINDIR COMSPEC PATHEXT USERPROFILE LOCALAPPDATA PROGRAMFILES
  PROGRAMFILES(X86) PROGRAMDATA NUMBER_OF_PROCESSORS`.split(/\s+/)
)
const PREFIXES =
  `LC_ DYLD_ CUDA_ NVIDIA_ HIP_ ROCR_ ROCM_ HSA_ GPU_ GGML_ VK_ VULKAN_ MESA_ RADV_ SYCL_ ONEAPI_ ZE_ OMP_ GOMP_ KMP_
  PROCESSOR_`.split(/\s+/)

/** Additional variables for a purpose. */
const PURPOSES = {
  /** Programs that find or install packages over the network. */
  packages:
    /^((HTTPS?|ALL|NO|FTP)_PROXY|SSL_CERT_(FILE|DIR)|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|NODE_EXTRA_CA_CERTS|GIT_SSL_\w+|PIP_\w+|UV_\w+|NPM_CONFIG_\w+|PYENV_\w+|ASDF_\w+|APPDATA)$/,
  compiling:
    /^(CC|CXX|CPP|AR|LD|AS|NM|RANLIB|(C|CXX|CPP|LD|NVCC_\w+_)FLAGS|CUDA\w+|NVCC_\w+|HIP\w+|CMAKE_\w+|MAKEFLAGS|NINJA_\w+|CPATH|(C|CPLUS)_INCLUDE_PATH|LIBRARY_PATH|PKG_CONFIG_\w+|CCACHE_\w+|SCCACHE_\w+|MACOSX_DEPLOYMENT_TARGET|SDKROOT|DEVELOPER_DIR|INCLUDE|LIB|LIBPATH|VS\w+|VC\w+|WINDOWSSDK\w+|UCRT\w+|UNIVERSALCRT\w+)$/
} as const
export type ToolPurpose = keyof typeof PURPOSES

/** Never inherited, even if a list has the name. */
const SECRET = /KEY(?!RING)|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH|COOKIE|^AWS_|^AZURE_|^GOOGLE_/

/** The variables that a program may inherit. Case is ignored on Windows, and in names of proxies everywhere. */
export function toolEnvironment(ambient: NodeJS.ProcessEnv, purpose?: ToolPurpose): Record<string, string> {
  const isAllowed = (name: string) => {
    const upper = name.toUpperCase()
    if (SECRET.test(upper)) return false
    if (NAMES.has(upper) || PREFIXES.some(prefix => upper.startsWith(prefix))) return true
    return purpose !== undefined && PURPOSES[purpose].test(upper)
  }
  return Object.fromEntries(Object.entries(ambient).filter(([name]) => isAllowed(name))) as Record<string, string>
}
