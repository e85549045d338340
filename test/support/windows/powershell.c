/* A stand-in for powershell.exe: Wine's does nothing. It answers what corral asks: the start of a process, the user and the
   security descriptors of files, the state of a task, and the display adapters (of the file FAKE_ADAPTERS, or none). */
#include <windows.h>
#include <aclapi.h>
#include <sddl.h>
#include <stdio.h>
#include <wchar.h>

static int processStart(unsigned long pid) {
  HANDLE process = OpenProcess(PROCESS_QUERY_LIMITED_INFORMATION, FALSE, pid);
  FILETIME made, ended, kernel, user;
  if (!process || !GetProcessTimes(process, &made, &ended, &kernel, &user)) return 1;
  printf("%llu\r\n", ((unsigned long long)made.dwHighDateTime << 32) | made.dwLowDateTime);
  return 0;
}

static int identity(void) {
  BYTE token[256];
  char *user;
  HANDLE own;
  DWORD size;
  if (!OpenProcessToken(GetCurrentProcess(), TOKEN_QUERY, &own)) return 1;
  if (!GetTokenInformation(own, TokenUser, token, sizeof token, &size)) return 1;
  ConvertSidToStringSidA(((TOKEN_USER *)token)->User.Sid, &user);
  return printf("%s\r\n", user) < 0;
}

/* Each '…' after -LiteralPath; a quote in a path is doubled. */
static int descriptors(wchar_t *at) {
  while ((at = wcsstr(at, L"-LiteralPath '"))) {
    wchar_t path[32768], *to = path;
    for (at += 14; *at && (*at != L'\'' || at[1] == L'\''); at++) {
      if (*at == L'\'') at++;
      *to++ = *at;
    }
    *to = 0;
    PSECURITY_DESCRIPTOR found;
    char *text;
    SECURITY_INFORMATION parts = OWNER_SECURITY_INFORMATION | DACL_SECURITY_INFORMATION;
    if (GetNamedSecurityInfoW(path, SE_FILE_OBJECT, parts, NULL, NULL, NULL, NULL, &found)) return 1;
    if (!ConvertSecurityDescriptorToStringSecurityDescriptorA(found, SDDL_REVISION_1, parts, &text, NULL)) return 1;
    printf("%s\r\n", text);
  }
  return 0;
}

int wmain(void) {
  wchar_t *line = GetCommandLineW(), *at;
  if ((at = wcsstr(line, L"Get-Process -Id "))) return processStart(wcstoul(at + 16, NULL, 10));
  if (wcsstr(line, L"WindowsIdentity]") && identity()) return 1;
  if (wcsstr(line, L"Get-Acl ")) return descriptors(line);
  if (wcsstr(line, L"Get-ScheduledTask ")) return printf("Ready\r\n") < 0;
  char *file = getenv("FAKE_ADAPTERS");
  FILE *f = file ? fopen(file, "rb") : NULL;
  if (!f) return printf("[]\r\n") < 0;
  for (int c; (c = fgetc(f)) != EOF;) putchar(c);
  return 0;
}
