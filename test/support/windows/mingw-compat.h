/* The parts of Windows 10 that llama.cpp uses and the headers of mingw-w64 10 (Debian 12) lack. */
#ifndef CORRAL_MINGW_COMPAT_H
#define CORRAL_MINGW_COMPAT_H
#define THREAD_POWER_THROTTLING_CURRENT_VERSION 1
#define THREAD_POWER_THROTTLING_EXECUTION_SPEED 0x1
#define THREAD_POWER_THROTTLING_VALID_FLAGS 0x1
typedef struct _THREAD_POWER_THROTTLING_STATE {
  unsigned long Version;
  unsigned long ControlMask;
  unsigned long StateMask;
} THREAD_POWER_THROTTLING_STATE;
#endif
