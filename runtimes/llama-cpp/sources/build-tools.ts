import { readFile } from 'node:fs/promises'
import { findExecutable } from '../../../core/system/child-process.ts'
import { SourceUnavailable } from './source-errors.ts'

/** What compiling llama.cpp needs. */
export type BuildTool = 'git' | 'cmake' | 'C++ compiler' | 'make or ninja'

export interface ToolChain {
  git: string
  cmake: string
  /** Undefined where cmake knows the compiler itself. */
  generator: 'Ninja' | 'Unix Makefiles' | undefined
  /** Paths of compilers for GPUs, where they are installed. */
  nvcc: string | undefined
  hipcc: string | undefined
  /** Compiler of Vulkan's shaders. */
  glslc: string | undefined
}

const PACKAGES: Record<string, Record<BuildTool, string>> = {
  apt: { git: 'git', cmake: 'cmake', 'C++ compiler': 'g++', 'make or ninja': 'ninja-build' },
  dnf: { git: 'git', cmake: 'cmake', 'C++ compiler': 'gcc-c++', 'make or ninja': 'ninja-build' },
  pacman: { git: 'git', cmake: 'cmake', 'C++ compiler': 'gcc', 'make or ninja': 'ninja' },
  apk: { git: 'git', cmake: 'cmake', 'C++ compiler': 'build-base linux-headers', 'make or ninja': 'samurai' },
  zypper: { git: 'git', cmake: 'cmake', 'C++ compiler': 'gcc-c++', 'make or ninja': 'ninja' },
  brew: { git: 'git', cmake: 'cmake', 'C++ compiler': '', 'make or ninja': 'ninja' },
  winget: {
    git: 'Git.Git',
    cmake: 'Kitware.CMake',
    'C++ compiler': 'Microsoft.VisualStudio.2022.BuildTools',
    'make or ninja': 'Ninja-build.Ninja'
  }
}

const COMMANDS: Record<string, string> = {
  apt: 'sudo apt-get install -y',
  dnf: 'sudo dnf install -y',
  pacman: 'sudo pacman -S --needed',
  apk: 'sudo apk add',
  zypper: 'sudo zypper install -y',
  brew: 'brew install',
  winget: 'winget install'
}

function packageManager(platform: NodeJS.Platform, osRelease: string): string | undefined {
  if (platform === 'darwin') return 'brew'
  if (platform === 'win32') return 'winget'
  const ids = [...osRelease.matchAll(/^(?:ID|ID_LIKE)=["']?([^"'\n]*)/gm)].flatMap(match => match[1]!.split(' '))
  const families: [string, string[]][] = [
    ['apt', ['debian', 'ubuntu']],
    ['dnf', ['fedora', 'rhel', 'centos']],
    ['pacman', ['arch']],
    ['apk', ['alpine']],
    ['zypper', ['suse', 'opensuse']]
  ]
  return families.find(([, names]) => names.some(name => ids.includes(name)))?.[0]
}

/**
 * The command that installs what is missing on this system; undefined where it is not known. Pure.
 * @param osRelease text of `/etc/os-release`
 */
export function installCommand(
  missing: readonly BuildTool[],
  platform: NodeJS.Platform,
  osRelease: string
): string | undefined {
  const manager = packageManager(platform, osRelease)
  if (manager === undefined) return undefined
  const packages = missing.map(tool => PACKAGES[manager]![tool]).filter(name => name !== '')
  const commands = packages.length > 0 ? [`${COMMANDS[manager]} ${packages.join(' ')}`] : []
  if (platform === 'darwin' && missing.includes('C++ compiler')) commands.unshift('xcode-select --install')
  return commands.join(' && ')
}

/** Looks for the tools that compiling needs. @throws SourceUnavailable naming the missing ones and how to install them */
export async function findToolChain(env: NodeJS.ProcessEnv): Promise<ToolChain> {
  const windows = process.platform === 'win32'
  const find = (...names: string[]) => names.map(name => findExecutable(name, env)).find(path => path !== undefined)
  const git = find('git')
  const cmake = find('cmake')
  const ninja = find('ninja', 'samu')
  const make = find('make', 'gmake')
  const compiler = env.CXX ? find(env.CXX) : find('c++', 'g++', 'clang++')
  const missing: BuildTool[] = []
  if (!git) missing.push('git')
  if (!cmake) missing.push('cmake')
  // Visual Studio's compiler is not on PATH: cmake finds it, and says so when there is none.
  if (!compiler && !windows) missing.push('C++ compiler')
  if (!ninja && !make && !windows) missing.push('make or ninja')
  if (missing.length > 0) {
    const osRelease = await readFile('/etc/os-release', 'utf8').catch(() => '')
    const command = installCommand(missing, process.platform, osRelease)
    throw new SourceUnavailable(
      `compiling llama.cpp needs what is not installed: ${missing.join(', ')}` +
        (command === undefined ? '' : `; install with: ${command}`)
    )
  }
  return {
    git: git!,
    cmake: cmake!,
    generator: windows ? undefined : ninja ? 'Ninja' : 'Unix Makefiles',
    nvcc: findExecutable('nvcc', env, ['/usr/local/cuda/bin']),
    hipcc: findExecutable('hipcc', env, ['/opt/rocm/bin']),
    glslc: findExecutable('glslc', env)
  }
}

/** How far a build is, by a line that make or ninja printed; undefined for other lines. Pure. */
export function buildFraction(line: string): number | undefined {
  const percent = /^\[\s*(\d+)%\]/.exec(line)
  if (percent) return Math.min(1, Number(percent[1]) / 100)
  const steps = /^\[(\d+)\/(\d+)\]/.exec(line)
  return steps && Number(steps[2]) > 0 ? Math.min(1, Number(steps[1]) / Number(steps[2])) : undefined
}
