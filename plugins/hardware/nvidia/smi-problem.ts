import type { HardwareProblem } from '../../../core/contracts/hardware.ts'

/** Where the machine is, which decides what mends a driver. */
export type Surroundings = 'linux' | 'wsl' | 'win32'

const SUBJECT = 'NVIDIA driver'

const INSTALL: Record<Surroundings, string> = {
  linux:
    'Install the driver of your distribution (Ubuntu: "sudo ubuntu-drivers install"), load it with "sudo modprobe nvidia" ' +
    'or restart the machine. With Secure Boot, its kernel module must be signed. In a container, start it with "--gpus all".',
  wsl:
    'Update the NVIDIA driver on Windows, install none within WSL (it would hide the one of Windows), then run ' +
    '"wsl --shutdown" on Windows and start again.',
  win32: 'Install the newest driver from https://www.nvidia.com/drivers and restart the machine.'
}

/** What nvidia-smi complains of; undefined where it says nothing that is known. */
export function smiProblem(text: string, where: Surroundings): HardwareProblem | undefined {
  if (/driver\/library version mismatch/i.test(text)) {
    const library = /NVML library version:\s*([\d.]+)/.exec(text)?.[1]
    return {
      code: 'driver_mismatch',
      subject: SUBJECT,
      message:
        `The NVIDIA driver in the kernel is of another version than its libraries${library ? ` (${library})` : ''}: it was ` +
        'updated while in use.',
      advice:
        where === 'linux'
          ? 'Restart the machine ("sudo reboot"), or unload the old driver and load the new one. In a container, install ' +
            "no driver libraries of its own: they come from the host's."
          : INSTALL[where]
    }
  }
  if (
    /couldn't communicate with the NVIDIA driver|driver not loaded|couldn't find (the )?(libnvidia-ml|nvml)|NVML: (library )?not found|driver is not (loaded|installed)/i.test(
      text
    )
  ) {
    return {
      code: 'driver_not_loaded',
      subject: SUBJECT,
      message: 'nvidia-smi is here, but no NVIDIA driver answers it.',
      advice: INSTALL[where]
    }
  }
  if (/GPU is lost|fallen off the bus|unable to determine the device handle/i.test(text)) {
    return {
      code: 'no_device',
      subject: SUBJECT,
      message: 'An NVIDIA GPU no longer answers its driver.',
      advice: 'Restart the machine; if it happens again, look for "Xid" in "sudo dmesg", and check power and cooling.'
    }
  }
  if (/no devices were found|no supported (GPUs|devices) were found/i.test(text)) {
    return {
      code: 'no_device',
      subject: SUBJECT,
      message: 'The NVIDIA driver is installed, but finds no GPU: there is none, it is switched off, or it is hidden.',
      advice:
        where === 'linux'
          ? 'Look for it with "lspci -d 10de:"; in a container, start it with "--gpus all"; "sudo dmesg | grep -i nvrm" says ' +
            'why the driver left a card out.'
          : INSTALL[where]
    }
  }
  if (
    /insufficient permissions|GPU access blocked|operation not permitted|NVML: Unknown Error|no permission/i.test(text)
  ) {
    return {
      code: 'no_permission',
      subject: SUBJECT,
      message: 'This user may not reach the NVIDIA devices.',
      advice:
        where === 'linux'
          ? 'Check the rights of /dev/nvidia*. A container that lost its devices must be started again, with "--gpus all".'
          : INSTALL[where]
    }
  }
  return undefined
}
