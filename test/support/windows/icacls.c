/* A stand-in for icacls.exe: Wine's does nothing. It replaces the access list of a folder, as in
   icacls FOLDER /inheritance:r /grant:r *S-1-5-18:(OI)(CI)F … Wine knows no "owner rights" (S-1-3-4), so the user gets them. */
#include <windows.h>
#include <sddl.h>
#include <stdio.h>
#include <wchar.h>

int wmain(int count, wchar_t **words) {
  wchar_t list[4096] = L"D:P", *user;
  BYTE token[256];
  HANDLE own;
  DWORD size;
  if (!OpenProcessToken(GetCurrentProcess(), TOKEN_QUERY, &own)) return 1;
  if (!GetTokenInformation(own, TokenUser, token, sizeof token, &size)) return 1;
  ConvertSidToStringSidW(((TOKEN_USER *)token)->User.Sid, &user);
  for (int i = 2; i < count; i++) {
    wchar_t *end = wcsstr(words[i], L":(OI)(CI)F");
    if (words[i][0] != L'*' || !end) continue;
    *end = 0;
    wchar_t *sid = wcscmp(words[i] + 1, L"S-1-3-4") ? words[i] + 1 : user;
    swprintf(list + wcslen(list), 200, L"(A;OICI;FA;;;%ls)", sid);
  }
  PSECURITY_DESCRIPTOR wanted;
  if (!ConvertStringSecurityDescriptorToSecurityDescriptorW(list, SDDL_REVISION_1, &wanted, NULL)) return 1;
  if (count < 2 || !SetFileSecurityW(words[1], DACL_SECURITY_INFORMATION, wanted)) return 1;
  printf("processed file: %ls\r\n", words[1]);
  return 0;
}
